#include <cmath>

#include "core/parallel.h"
#include "ops/linear.h"
#include "ops/norm.h"

namespace carope::cpu {
namespace {

constexpr std::int64_t kRows = 64;  // rows a task

/// Normalises one row; `x` and `y` may not overlap.
void normalise(const float* x, std::int64_t width, const NormWeights& weights, const Normed& out,
               std::int64_t row) {
  const float* gain = weights.gain.f32();
  const float* bias = weights.bias.f32();
  float* y = out.y.f32() + row * width;
  float sum = 0.0F;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t c = 0; c < width; ++c) {
    sum += x[c];
  }
  const float mean = sum / static_cast<float>(width);
  float squares = 0.0F;
#pragma omp simd reduction(+ : squares)
  for (std::int64_t c = 0; c < width; ++c) {
    const float centred = x[c] - mean;
    squares += centred * centred;
  }
  const float rstd = 1.0F / std::sqrt(squares / static_cast<float>(width) + kNormEpsilon);
#pragma omp simd
  for (std::int64_t c = 0; c < width; ++c) {
    y[c] = (x[c] - mean) * rstd * gain[c] + bias[c];
  }
  out.mean.f32()[row] = mean;
  out.rstd.f32()[row] = rstd;
}

/// Adds one row's part to dx, and to the sums behind dgain, dbias and dbias_before, which follow
/// each other in `sums`.
void row_backward(const NormBackward& args, const Tensor& dys, std::int64_t row, float* sums) {
  const std::int64_t width = args.x.cols();
  const float* x = args.x.f32() + row * width;
  const float* dy = dys.f32() + row * width;
  const float* gain = args.gain.f32();
  float* dx = args.dx.f32() + row * width;
  float* dgain = sums;
  float* dbias = sums + width;
  const float mean = args.normed.mean.f32()[row];
  const float rstd = args.normed.rstd.f32()[row];
  float sum_d = 0.0F;
  float sum_dx = 0.0F;
#pragma omp simd reduction(+ : sum_d, sum_dx)
  for (std::int64_t c = 0; c < width; ++c) {
    const float normed = (x[c] - mean) * rstd;
    const float d = dy[c] * gain[c];
    dgain[c] += dy[c] * normed;
    dbias[c] += dy[c];
    sum_d += d;
    sum_dx += d * normed;
  }
  const float mean_d = sum_d / static_cast<float>(width);
  const float mean_dx = sum_dx / static_cast<float>(width);
#pragma omp simd
  for (std::int64_t c = 0; c < width; ++c) {
    const float normed = (x[c] - mean) * rstd;
    dx[c] += (dy[c] * gain[c] - mean_d - normed * mean_dx) * rstd;
  }
  if (args.dbias_before) {
    float* dbias_before = sums + 2 * width;
#pragma omp simd
    for (std::int64_t c = 0; c < width; ++c) {
      dbias_before[c] += dx[c];
    }
  }
}

}  // namespace

void layer_norm(Context& ctx, const Tensor& x, const NormWeights& weights, const Normed& out,
                const NormGate& gate) {
  parallel_blocks(ctx, x.rows(), kRows, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      normalise(x.f32() + row * x.cols(), x.cols(), weights, out, row);
    }
  });
  if (gate.weight) {
    linear(ctx, out.y, gate.weight, gate.bias, gate.logits, Rounding::kByRow);
  }
}

void norm_backward(Context& ctx, const NormBackward& args, Tensor& dy) {
  if (args.gate_weight) {
    linear_backward_input(ctx, args.dlogits, args.gate_weight, dy, Write::kAccumulate);
  }
  const std::int64_t width = args.x.cols();
  const std::int64_t blocks = (args.x.rows() + kRows - 1) / kRows;
  const std::int64_t stride = (args.dbias_before ? 3 : 2) * width;
  // Each task sums its rows' share of the sums over rows, a short run in fp32; the shares are then
  // added in a fixed order.
  const Tensor shares = ctx.scratch({{blocks, stride}});
  parallel_blocks(ctx, args.x.rows(), kRows, [&](std::int64_t begin, std::int64_t end) {
    float* sums = shares.f32() + begin / kRows * stride;
    std::fill_n(sums, stride, 0.0F);
    for (std::int64_t row = begin; row < end; ++row) {
      row_backward(args, dy, row, sums);
    }
  });
  const auto total = [&](std::int64_t column, float* gradient) {
    double sum = args.write == Write::kAccumulate ? *gradient : 0.0;
    for (std::int64_t block = 0; block < blocks; ++block) {
      sum += shares.f32()[block * stride + column];
    }
    *gradient = static_cast<float>(sum);
  };
  for (std::int64_t c = 0; c < width; ++c) {
    total(c, args.dweights.gain.f32() + c);
    total(width + c, args.dweights.bias.f32() + c);
    if (args.dbias_before) {
      total(2 * width + c, args.dbias_before.f32() + c);
    }
  }
}

}  // namespace carope::cpu
