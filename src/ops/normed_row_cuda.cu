#include "ops/cuda/early_start.cuh"
#include "ops/matmul/gelu.cuh"
#include "ops/matmul/weight_stream.cuh"
#include "ops/normed_linear.h"

// The norm of one row takes a warp no longer than its weights take to arrive: so every warp that
// computes outputs normalises the row for itself, and there is no kernel to wait for.
namespace carope::cuda {
namespace {

constexpr int kWarps = 2;  // of a block, as in layers of few rows
constexpr int kThreads = kWarps * kWarp;
constexpr int kMostColumns = 1024;

template <class T>
struct NormedRow {
  const T* x;  // [columns]
  const float* gain;
  const float* shift;
  T* normed;  // [columns]
  float* mean;
  float* rstd;
  const T* weight;  // [outputs, columns]
  const T* bias;    // [outputs] or null
  T* pre;           // [outputs] or null
  T* y;             // [outputs]
  int columns, outputs;
};

/// An output a warp. What it adds up is in the order of the kernels for the norm and for few rows.
template <class T>
__global__ void __launch_bounds__(kThreads) normed_row_kernel(const NormedRow<T> row) {
  constexpr int N = kLanesOf<T>;
  constexpr int kStep = kWarp * N;
  constexpr int kVectors = kMostColumns / kStep;
  const int lane = threadIdx.x % kWarp;
  const int output = blockIdx.x * kWarps + threadIdx.x / kWarp;
  let_next_begin();
  if (output >= row.outputs) {
    return;
  }
  const auto for_each_vector = [&](const auto& visit) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int column = i * kStep + lane * N;
      if (column < row.columns) {
        visit(i, column);
      }
    }
  };
  const T* weights_of_output = row.weight + static_cast<std::int64_t>(output) * row.columns;
  Vec<T, N> weights[kVectors];
  for_each_vector([&](int i, int column) {
    weights[i] = load_once<T, N>(weights_of_output + column);
    ask_for(row.gain + column);
    ask_for(row.shift + column);
  });
  const float bias = row.bias != nullptr ? to_float(row.bias[output]) : 0.0F;

  wait_for_previous();
  Vec<T, N> x[kVectors];
  for_each_vector([&](int i, int column) { x[i] = Vec<T, N>::load(row.x + column); });
  float sum = 0.0F;
  for_each_vector([&](int i, int) {
    float values[N];
    unpack(x[i], values);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      sum += values[k];
    }
  });
  const auto width = static_cast<float>(row.columns);
  const float mean = warp_sum(sum) / width;
  float squares = 0.0F;
  for_each_vector([&](int i, int) {
    float values[N];
    unpack(x[i], values);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float centred = values[k] - mean;
      squares += centred * centred;
    }
  });
  const float rstd = rsqrtf(warp_sum(squares) / width + kNormEpsilon);

  const bool keeps = output == 0;  // what the others have too
  float product = 0.0F;
  for_each_vector([&](int i, int column) {
    float values[N], gain[N], shift[N], w[N];
    unpack(x[i], values);
    load_floats(row.gain + column, gain);
    load_floats(row.shift + column, shift);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      values[k] = (values[k] - mean) * rstd * gain[k] + shift[k];
    }
    const auto normed = pack<T>(values);
    unpack(normed, values);
    unpack(weights[i], w);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      product = fmaf(values[k], w[k], product);
    }
    if (keeps) {
      normed.store(row.normed + column);
    }
  });
  product = warp_sum(product);
  if (lane == 0) {
    T result = from_float<T>(product + bias);
    if (row.pre != nullptr) {
      row.pre[output] = result;
      result = from_float<T>(gelu_of(to_float(result)));
    }
    row.y[output] = result;
    if (keeps) {
      *row.mean = mean;
      *row.rstd = rstd;
    }
  }
}

}  // namespace

bool normed_row(Context& ctx, const NormedLinear& args) {
  const std::int64_t columns = args.x.cols();
  const DType type = args.x.dtype();
  if (args.x.rows() != 1 || args.gelu.slopes || columns > kMostColumns ||
      columns % kLanesOf<bf16> != 0 || args.weight.dtype() != type || args.y.dtype() != type ||
      (args.bias && args.bias.dtype() != type) ||
      !aligned16(args.x.raw(), args.norm.gain.raw(), args.norm.bias.raw(), args.normed.y.raw(),
                 args.weight.raw())) {
    return false;
  }
  visit_float(type, [&](auto zero) {
    using T = decltype(zero);
    const NormedRow<T> row{.x = data_of<T>(args.x),
                           .gain = args.norm.gain.f32(),
                           .shift = args.norm.bias.f32(),
                           .normed = data_of<T>(args.normed.y),
                           .mean = args.normed.mean.f32(),
                           .rstd = args.normed.rstd.f32(),
                           .weight = data_of<T>(args.weight),
                           .bias = data_of<T>(args.bias),
                           .pre = data_of<T>(args.gelu.values),
                           .y = data_of<T>(args.y),
                           .columns = static_cast<int>(columns),
                           .outputs = static_cast<int>(args.y.cols())};
    launch_early(ctx, normed_row_kernel<T>, dim3(ceil_div<unsigned>(row.outputs, kWarps)), kThreads,
                 row);
  });
  return true;
}

}  // namespace carope::cuda
