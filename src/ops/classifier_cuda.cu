#include "ops/classifier_cuda.h"

#include <cmath>

#include "ops/cuda/kernel.cuh"
#include "ops/linear.h"
#include "ops/matmul/matmul_hopper.h"

// The classifier of one chunk without logits. With z the logits of a row, t its target, and
// P = e^(z - z_t), which the product stores in the place of z:
//
//     sum  = Σ P                                  the target's is 1
//     loss = log(sum)
//     dz   = scale / sum (P - sum onehot(t))      so P is right but at the target: 1 - sum
//
// A row's factor scale / sum is known only after the product, but what is linear in dz can take it
// later: dhidden = factor (P W), and dweight = Pᵀ (factor hidden).
namespace carope::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / static_cast<int>(kWarp);
constexpr int kLanes = kLanesOf<bf16>;
constexpr int kStep = kLanes * static_cast<int>(kWarp);  // columns that a warp has at once

/// The rows of a chunk.
struct Rows {
  const bf16* hidden;           // [N, C]
  const bf16* weight;           // [V, C]
  const std::int32_t* targets;  // [N]
  float* losses;                // [N]
  bf16* powers;                 // [N, V]
  bf16* dhidden;                // [N, C]
  int count;                    // N
  int width;                    // C
  int classes;                  // V
  float scale;
};

/// What the gradients of row n are multiplied by once its loss is known and its target's power put
/// right: scale / sum, and a little more or less, so that the target's gradient, by far the largest
/// as a rule, is right although 1 - sum is rounded.
__device__ float factor_of(const Rows& rows, std::int64_t n) {
  const std::int32_t target = rows.targets[n];
  if (target < 0) {
    return 0.0F;
  }
  const float rounded = to_float(rows.powers[n * rows.classes + target]);
  return rounded < 0.0F ? rows.scale * expm1f(-rows.losses[n]) / rounded : rows.scale;
}

/// to = factor from, for a row. One warp.
__device__ void scale_row(const bf16* from, float factor, bf16* to, int width) {
  for (int i = threadIdx.x % kWarp * kLanes; i < width; i += kStep) {
    float values[kLanes];
    unpack(Vec<bf16, kLanes>::load(from + i), values);
#pragma unroll
    for (float& value : values) {
      value *= factor;
    }
    pack<bf16>(values).store(to + i);
  }
}

/// shifts = log2(e) z_t, a warp a row. That of a row not counted is infinite: its powers are zero.
__global__ void __launch_bounds__(kThreads) shift_rows(Rows rows, float* shifts) {
  const std::int64_t n = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  const std::int32_t target = rows.targets[n];
  float sum = 0.0F;
  if (target >= 0) {
    const bf16* hidden = rows.hidden + n * rows.width;
    const bf16* weight = rows.weight + std::int64_t{target} * rows.width;
    for (int i = threadIdx.x % kWarp * kLanes; i < rows.width; i += kStep) {
      float a[kLanes], b[kLanes];
      unpack(Vec<bf16, kLanes>::load(hidden + i), a);
      unpack(Vec<bf16, kLanes>::load(weight + i), b);
#pragma unroll
      for (int k = 0; k < kLanes; ++k) {
        sum += a[k] * b[k];
      }
    }
  }
  sum = warp_sum(sum);
  if (threadIdx.x % kWarp == 0) {
    constexpr float kLog2E = 1.44269504F;
    shifts[n] = target < 0 ? INFINITY : kLog2E * sum;
  }
}

/// A block has as many rows as a warp has lanes. It makes their losses of the shares [columns, N]
/// of their sums, puts right the powers of their targets, and leaves factor hidden in dhidden.
__global__ void __launch_bounds__(kThreads)
    finish_rows(Rows rows, const float* shares, int columns) {
  __shared__ float sums[kWarps][kWarp];
  __shared__ float factors[kWarp];
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  const std::int64_t first = std::int64_t{blockIdx.x} * kWarp;
  float share = 0.0F;
#pragma unroll 8
  for (int column = warp; column < columns; column += kWarps) {
    share += shares[std::int64_t{column} * rows.count + first + lane];
  }
  sums[warp][lane] = share;
  __syncthreads();
  if (warp == 0) {
    float sum = 0.0F;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) {
      sum += sums[i][lane];
    }
    const std::int64_t n = first + lane;
    const std::int32_t target = rows.targets[n];
    sum = sum < 1.0F ? 1.0F : sum;  // but for rounding it is not, and a NaN stays one
    rows.losses[n] = target < 0 ? 0.0F : logf(sum);
    if (target >= 0) {
      rows.powers[n * rows.classes + target] = from_float<bf16>(1.0F - sum);
    }
    factors[lane] = factor_of(rows, n);
  }
  __syncthreads();
  for (int i = warp; i < static_cast<int>(kWarp); i += kWarps) {
    const std::int64_t at = (first + i) * rows.width;
    scale_row(rows.hidden + at, factors[i], rows.dhidden + at, rows.width);
  }
}

/// dhidden = factor dhidden, a warp a row.
__global__ void __launch_bounds__(kThreads) scale_gradient(Rows rows) {
  const std::int64_t n = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  bf16* row = rows.dhidden + n * rows.width;
  scale_row(row, factor_of(rows, n), row, rows.width);
}

}  // namespace

bool serves_hopper_classifier(Context& ctx, const Classifier& chunk,
                              const ClassifierGradient& gradient) {
  return hopper_makes_powers(ctx, chunk.hidden, chunk.weight, chunk.logits) &&
         gradient.dhidden.dtype() == DType::kBF16 && aligned16(gradient.dhidden.raw());
}

void hopper_classifier(Context& ctx, const Classifier& chunk, const ClassifierGradient& gradient) {
  const Tensor& powers = chunk.logits;
  const Rows rows{.hidden = data_of<bf16>(chunk.hidden),
                  .weight = data_of<bf16>(chunk.weight),
                  .targets = chunk.targets.data<std::int32_t>(),
                  .losses = chunk.losses.f32(),
                  .powers = data_of<bf16>(powers),
                  .dhidden = data_of<bf16>(gradient.dhidden),
                  .count = static_cast<int>(powers.rows()),
                  .width = static_cast<int>(chunk.hidden.cols()),
                  .classes = static_cast<int>(powers.cols()),
                  .scale = gradient.scale};
  const int columns = ceil_div(rows.classes, kColumnsOfShare);
  const Tensor sums = ctx.scratch({{columns + 1, rows.count}});
  const Tensor shifts = sums.slice_rows(0, 1);
  const Tensor shares = sums.slice_rows(1, columns + 1);
  cudaStream_t stream = stream_of(ctx);

  shift_rows<<<rows.count / kWarps, kThreads, 0, stream>>>(rows, shifts.f32());
  CUDA_CHECK_LAUNCH();
  hopper_powers(ctx, {chunk.hidden, chunk.weight, shifts, powers, shares});
  finish_rows<<<rows.count / kWarp, kThreads, 0, stream>>>(rows, shares.f32(), columns);
  CUDA_CHECK_LAUNCH();
  linear_backward_weight(ctx, gradient.dhidden, powers, gradient.dweight, {}, gradient.write);
  linear_backward_input(ctx, powers, chunk.weight, gradient.dhidden, Write::kOverwrite);
  scale_gradient<<<rows.count / kWarps, kThreads, 0, stream>>>(rows);
  CUDA_CHECK_LAUNCH();
}

}  // namespace carope::cuda
