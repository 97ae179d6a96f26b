#include "ops/norm.h"

#include <type_traits>

#include "ops/cuda/early_start.cuh"
#include "ops/linear.h"
#include "ops/norm/norm_gate_cuda.h"

// A warp has a row, in registers where the width is a common one: lane i holds the vectors i,
// i + 32, ... of the row, so that mean and variance take two passes over registers and none over
// memory. Rows of other widths are read several times, element by element.
namespace carope::cuda {
namespace {

constexpr int kRows = 4;  // of a block, where each warp has one
constexpr int kThreads = kRows * kWarp;

/// Calls visit(i, column) for this lane's vectors: the i-th has the elements from `column` on.
template <class T, int kVectors, class Visit>
__device__ void for_each_vector(int width, const Visit& visit) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int column = (i * static_cast<int>(kWarp) + lane) * kLanesOf<T>;
    if (column < width) {
      visit(i, column);
    }
  }
}

/// Calls launch(vectors) with the number of a lane's vectors, a constant, if the row fits into
/// registers; otherwise returns false.
template <class T, class Launch>
bool with_vectors(std::int64_t width, const Launch& launch) {
  const auto fits = [&](auto widest) {
    constexpr int kColumns = kWarp * kLanesOf<T>;  // of a warp's vectors
    if (width <= widest) {
      launch(std::integral_constant<int, (widest + kColumns - 1) / kColumns>{});
      return true;
    }
    return false;
  };
  return width % kLanesOf<T> == 0 &&
         (fits(std::integral_constant<int, 512>{}) || fits(std::integral_constant<int, 768>{}) ||
          fits(std::integral_constant<int, 1024>{}) || fits(std::integral_constant<int, 1600>{}) ||
          fits(std::integral_constant<int, 2048>{}));
}

template <class T>
struct Forward {
  const T* x;
  const float* gain;
  const float* bias;
  T* y;
  float* mean;
  float* rstd;
  std::int64_t rows;
  int width;
};

__device__ float rstd_of(float squares, int width) {
  return rsqrtf(squares / static_cast<float>(width) + kNormEpsilon);
}

template <class T, int kVectors>
__global__ void __launch_bounds__(kThreads) norm_rows(const Forward<T> args) {
  constexpr int kWidth = kLanesOf<T>;
  const std::int64_t row = std::int64_t{blockIdx.x} * kRows + threadIdx.x / kWarp;
  let_next_begin();
  if (row >= args.rows) {
    return;
  }
  if (args.rows <= kRows) {
    for_each_vector<T, kVectors>(args.width, [&](int, int column) {
      ask_for(args.gain + column);
      ask_for(args.bias + column);
    });
  }
  wait_for_previous();
  const std::int64_t start = row * args.width;
  Vec<T, kWidth> x[kVectors];
  for_each_vector<T, kVectors>(
      args.width, [&](int i, int column) { x[i] = Vec<T, kWidth>::load(args.x + start + column); });

  float sum = 0.0F;
  for_each_vector<T, kVectors>(args.width, [&](int i, int) {
    float values[kWidth];
    unpack(x[i], values);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      sum += values[k];
    }
  });
  const float mean = warp_sum(sum) / static_cast<float>(args.width);
  float squares = 0.0F;
  for_each_vector<T, kVectors>(args.width, [&](int i, int) {
    float values[kWidth];
    unpack(x[i], values);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      const float centred = values[k] - mean;
      squares += centred * centred;
    }
  });
  const float rstd = rstd_of(warp_sum(squares), args.width);
  for_each_vector<T, kVectors>(args.width, [&](int i, int column) {
    float values[kWidth], gain[kWidth], bias[kWidth];
    unpack(x[i], values);
    load_floats(args.gain + column, gain);
    load_floats(args.bias + column, bias);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      values[k] = (values[k] - mean) * rstd * gain[k] + bias[k];
    }
    pack<T>(values).store(args.y + start + column);
  });
  if (threadIdx.x % kWarp == 0) {
    args.mean[row] = mean;
    args.rstd[row] = rstd;
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) norm_rows_plain(const Forward<T> args) {
  const std::int64_t row = std::int64_t{blockIdx.x} * kRows + threadIdx.x / kWarp;
  let_next_begin();
  wait_for_previous();
  if (row >= args.rows) {
    return;
  }
  const int lane = threadIdx.x % kWarp;
  const std::int64_t start = row * args.width;
  const T* x = args.x + start;
  float sum = 0.0F;
  for (int c = lane; c < args.width; c += kWarp) {
    sum += to_float(x[c]);
  }
  const float mean = warp_sum(sum) / static_cast<float>(args.width);
  float squares = 0.0F;
  for (int c = lane; c < args.width; c += kWarp) {
    const float centred = to_float(x[c]) - mean;
    squares += centred * centred;
  }
  const float rstd = rstd_of(warp_sum(squares), args.width);
  for (int c = lane; c < args.width; c += kWarp) {
    args.y[start + c] = from_float<T>((to_float(x[c]) - mean) * rstd * args.gain[c] + args.bias[c]);
  }
  if (lane == 0) {
    args.mean[row] = mean;
    args.rstd[row] = rstd;
  }
}

template <class T>
void forward(Context& ctx, const Forward<T>& args) {
  const auto run = [&](auto* kernel) {
    const auto blocks = static_cast<unsigned>(ceil_div<std::int64_t>(args.rows, kRows));
    launch_early(ctx, kernel, dim3(blocks), kThreads, args);
  };
  const bool aligned = aligned16(args.x, args.gain, args.bias, args.y);
  if (!aligned || !with_vectors<T>(args.width, [&](auto vectors) { run(norm_rows<T, vectors>); })) {
    run(norm_rows_plain<T>);
  }
}

template <class T>
Forward<T> forward_args(const Tensor& x, const NormWeights& weights, const Normed& out) {
  return {.x = data_of<T>(x),
          .gain = weights.gain.f32(),
          .bias = weights.bias.f32(),
          .y = data_of<T>(out.y),
          .mean = out.mean.f32(),
          .rstd = out.rstd.f32(),
          .rows = x.rows(),
          .width = static_cast<int>(x.cols())};
}

}  // namespace

void layer_norm(Context& ctx, const Tensor& x, const NormWeights& weights, const Normed& out,
                const NormGate& gate) {
  if (gate.weight && serves_norm_with_gate(ctx, x, out, gate)) {
    norm_with_gate(ctx, x, weights, out, gate);
    return;
  }
  visit_float(x.dtype(), [&](auto type) {
    using T = decltype(type);
    forward<T>(ctx, forward_args<T>(x, weights, out));
  });
  if (gate.weight) {
    carope::linear(ctx, out.y, gate.weight, gate.bias, gate.logits, Rounding::kByRow);
  }
}

}  // namespace carope::cuda
