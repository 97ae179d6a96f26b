#include "ops/matmul/few_rows_cuda.h"

#include "ops/cuda/early_start.cuh"
#include "ops/matmul/gelu.cuh"
#include "ops/matmul/weight_stream.cuh"

namespace carope::cuda {
namespace {

constexpr int kWarps = 2;  // of a block: so few that all multiprocessors get equal shares
constexpr int kThreads = kWarps * kWarp;
constexpr int kMostRows = 4;

template <class X, class W, class Y>
struct Layer {
  const X* x;         // [rows, columns]
  const W* weight;    // [outputs, columns]
  const W* bias;      // [outputs] or null
  const Y* residual;  // [rows, outputs] added to the result, or null
  Y* pre;             // [rows, outputs] or null
  Y* y;               // [rows, outputs]
  int rows, columns, outputs;
};

/// A warp computes some outputs of all rows, its lanes sharing the columns. It asks for kLoads
/// vectors of each output's weights before it uses any, and for the first ones before the kernel
/// that makes x is done: at a few MB a layer, what counts is how much is on the way at once.
template <class X, class W, class Y, int kRows, int kOutputs, int kLoads>
__global__ void __launch_bounds__(kThreads) few_rows_kernel(const Layer<X, W, Y> layer) {
  constexpr int N = kLanesOf<W>;
  constexpr int kStep = kWarp * N;  // columns of a warp's vectors
  const int lane = threadIdx.x % kWarp;
  const int first = (blockIdx.x * kWarps + threadIdx.x / kWarp) * kOutputs;
  let_next_begin();
  if (first >= layer.outputs) {
    return;
  }
  static_assert(kRows * kOutputs <= static_cast<int>(kWarp));  // a lane stores each result
  const int output = min(first + lane % kOutputs, layer.outputs - 1);
  const float bias = layer.bias != nullptr ? to_float(layer.bias[output]) : 0.0F;
  float sum[kRows][kOutputs] = {};
  for (int begin = lane * N; begin - lane * N < layer.columns; begin += kLoads * kStep) {
    Vec<W, N> weights[kOutputs][kLoads];
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) {
      const W* row = layer.weight +
                     static_cast<std::int64_t>(min(first + o, layer.outputs - 1)) * layer.columns;
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        if (begin + i * kStep < layer.columns) {
          weights[o][i] = load_once<W, N>(row + begin + i * kStep);
        }
      }
    }
    wait_for_previous();
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int column = begin + i * kStep;
      if (column < layer.columns) {
        float x[kRows][N];
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          const int row = min(r, layer.rows - 1);
          unpack(Vec<X, N>::load(layer.x + row * layer.columns + column), x[r]);
        }
#pragma unroll
        for (int o = 0; o < kOutputs; ++o) {
          float w[N];
          unpack(weights[o][i], w);
#pragma unroll
          for (int k = 0; k < N; ++k) {
#pragma unroll
            for (int r = 0; r < kRows; ++r) {
              sum[r][o] = fmaf(x[r][k], w[k], sum[r][o]);
            }
          }
        }
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) {
      const float total = warp_sum(sum[r][o]);
      if (lane == r * kOutputs + o && r < layer.rows && first + o < layer.outputs) {
        const std::int64_t at = static_cast<std::int64_t>(r) * layer.outputs + output;
        const float added = layer.residual != nullptr ? to_float(layer.residual[at]) : 0.0F;
        Y result = from_float<Y>(total + bias + added);
        if (layer.pre != nullptr) {
          layer.pre[at] = result;
          result = from_float<Y>(gelu_of(to_float(result)));
        }
        layer.y[at] = result;
      }
    }
  }
}

template <int kRows, class X, class W, class Y>
void run(const Context& ctx, const Layer<X, W, Y>& layer) {
  constexpr int kFewLoads = 4;
  constexpr int kManyLoads = 12;
  constexpr int kManyOutputs = 8192;  // blocks come and go: each is to be worth its start
  const auto start = [&](auto* kernel, int outputs) {
    const auto blocks = static_cast<unsigned>(ceil_div(layer.outputs, kWarps * outputs));
    launch_early(ctx, kernel, dim3(blocks), kThreads, layer);
  };
  if (layer.outputs >= kManyOutputs) {
    start(few_rows_kernel<X, W, Y, kRows, 4, kFewLoads>, 4);
  } else if (layer.columns <= kFewLoads * static_cast<int>(kWarp) * kLanesOf<W>) {
    start(few_rows_kernel<X, W, Y, kRows, 1, kFewLoads>, 1);
  } else {
    start(few_rows_kernel<X, W, Y, kRows, 1, kManyLoads>, 1);
  }
}

template <class X, class W, class Y>
void run(const Context& ctx, const Tensor& x, const Tensor& weight, const Tensor& bias,
         const Tensor& residual, const Tensor& pre, const Tensor& y) {
  const Layer<X, W, Y> layer{.x = data_of<X>(x),
                             .weight = data_of<W>(weight),
                             .bias = data_of<W>(bias),
                             .residual = data_of<Y>(residual),
                             .pre = data_of<Y>(pre),
                             .y = data_of<Y>(y),
                             .rows = static_cast<int>(x.rows()),
                             .columns = static_cast<int>(x.cols()),
                             .outputs = static_cast<int>(y.cols())};
  if (layer.rows == 1) {
    run<1>(ctx, layer);
  } else {
    run<kMostRows>(ctx, layer);
  }
}

using Run = void (*)(const Context&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                     const Tensor&, const Tensor&);

/// The kernel for the types of an input, a weight and a result; null if there is none.
Run kernel_for(DType x, DType weight, DType y) {
  const auto is = [&](DType of_x, DType of_weight, DType of_y) {
    return x == of_x && weight == of_weight && y == of_y;
  };
  if (is(DType::kBF16, DType::kBF16, DType::kBF16)) {
    return run<bf16, bf16, bf16>;
  }
  if (is(DType::kBF16, DType::kBF16, DType::kF32)) {
    return run<bf16, bf16, float>;
  }
  if (is(DType::kBF16, DType::kF32, DType::kF32)) {
    return run<bf16, float, float>;
  }
  return is(DType::kF32, DType::kF32, DType::kF32) ? run<float, float, float> : nullptr;
}

}  // namespace

bool serves_few_rows(const Tensor& x, const Tensor& weight, const Tensor& bias,
                     const Tensor& residual, const Tensor& pre, const Tensor& y) {
  return x.rows() <= kMostRows && x.cols() % kLanesOf<bf16> == 0 &&
         aligned16(x.raw(), weight.raw()) && (!bias || bias.dtype() == weight.dtype()) &&
         (!pre || pre.dtype() == y.dtype()) && (!residual || residual.dtype() == y.dtype()) &&
         kernel_for(x.dtype(), weight.dtype(), y.dtype()) != nullptr;
}

void few_rows_linear(Context& ctx, const Tensor& x, const Tensor& weight, const Tensor& bias,
                     const Tensor& residual, const Tensor& pre, const Tensor& y) {
  kernel_for(x.dtype(), weight.dtype(), y.dtype())(ctx, x, weight, bias, residual, pre, y);
}

}  // namespace carope::cuda
