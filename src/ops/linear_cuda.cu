#include "ops/linear.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <type_traits>

#include "ops/cuda/choices_cuda.h"
#include "ops/cuda/kernel.cuh"
#include "ops/cuda/shares_cuda.h"
#include "ops/matmul/few_rows_cuda.h"
#include "ops/matmul/gelu.cuh"
#include "ops/matmul/matmul_cuda.h"
#include "ops/matmul/matmul_hopper.h"
#include "ops/matmul/narrow_linear_cuda.h"

namespace carope::cuda {
namespace {

constexpr int kThreads = 256;

/// y[i] = function(x[i]), or function(x[i], y[i]) if it takes both; `N` elements at a time.
template <int N, class T, class Function>
__global__ void map_kernel(const T* x, T* y, std::int64_t count, Function function) {
  const std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) * N;
  if (i >= count) {
    return;
  }
  const auto in = Vec<T, N>::load(x + i);
  Vec<T, N> out;
  constexpr bool kTakesBoth = std::is_invocable_v<Function, float, float>;
  if constexpr (kTakesBoth) {
    out = Vec<T, N>::load(y + i);
  }
#pragma unroll
  for (int j = 0; j < N; ++j) {
    if constexpr (kTakesBoth) {
      out.at[j] = from_float<T>(function(to_float(in.at[j]), to_float(out.at[j])));
    } else {
      out.at[j] = from_float<T>(function(to_float(in.at[j])));
    }
  }
  out.store(y + i);
}

template <class Function>
void map(Context& ctx, const Tensor& x, const Tensor& y, const Function& function) {
  visit_float(x.dtype(), [&](auto type) {
    using T = decltype(type);
    constexpr int kLanes = kLanesOf<T>;
    const std::int64_t count = x.size();
    const auto launch = [&](auto lanes) {
      constexpr int N = decltype(lanes)::value;
      const auto blocks = static_cast<unsigned>(ceil_div<std::int64_t>(count, kThreads * N));
      map_kernel<N>
          <<<blocks, kThreads, 0, stream_of(ctx)>>>(data_of<T>(x), data_of<T>(y), count, function);
      CUDA_CHECK_LAUNCH();
    };
    if (count % kLanes == 0 && aligned16(x.raw(), y.raw())) {
      launch(std::integral_constant<int, kLanes>{});
    } else {
      launch(std::integral_constant<int, 1>{});
    }
  });
}

struct Gelu {
  __device__ float operator()(float x) const { return gelu_of(x); }
};
struct GeluDerivative {
  __device__ float operator()(float x) const { return gelu_derivative(x); }
};
struct TimesGeluDerivative {
  __device__ float operator()(float x, float dy) const { return dy * gelu_derivative(x); }
};
struct Times {
  __device__ float operator()(float x, float y) const { return x * y; }
};

// Sums of columns in two steps, so that the order of additions is always the same: every block sums
// a slab of rows, then the slabs' sums are added up.
constexpr int kSumWarps = kThreads / static_cast<int>(kWarp);
constexpr int kSumBlocks = 4;   // of a multiprocessor
constexpr int kRowsAtOnce = 6;  // of a thread: its loads in flight

/// A warp's lanes have N columns each, and its block's warps the slab's rows in turns.
template <int N, class T>
__global__ void __launch_bounds__(kThreads, kSumBlocks)
    column_sums_of_slabs(const T* x, std::int64_t rows, std::int64_t cols, float* partial) {
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  const std::int64_t first = std::int64_t{blockIdx.x} * kWarp * N;  // of the block's columns
  const std::int64_t col = first + lane * N;
  const std::int64_t end = rows * (blockIdx.y + 1) / gridDim.y;
  float sum[N] = {};
  if (col < cols) {
    for (std::int64_t row = rows * blockIdx.y / gridDim.y + warp; row < end;
         row += kRowsAtOnce * kSumWarps) {
      // The loads come first and as they are: taking them apart would wait for each of them.
      RawRow<T, N> loaded[kRowsAtOnce];
#pragma unroll
      for (int i = 0; i < kRowsAtOnce; ++i) {
        const std::int64_t at = row + i * kSumWarps;
        loaded[i] = at < end ? RawRow<T, N>::load(x + at * cols + col) : RawRow<T, N>{};
      }
#pragma unroll
      for (int i = 0; i < kRowsAtOnce; ++i) {
        float values[N];
        unpack(loaded[i], values);
#pragma unroll
        for (int k = 0; k < N; ++k) {
          sum[k] += values[k];
        }
      }
    }
  }
  __shared__ float sums[kSumWarps][N][kWarp + 4];  // not all of a column in one bank
#pragma unroll
  for (int k = 0; k < N; ++k) {
    sums[warp][k][lane] = sum[k];
  }
  __syncthreads();
  const int column = threadIdx.x;  // of the block's
  if (column < static_cast<int>(kWarp) * N && first + column < cols) {
    float total = 0.0F;
#pragma unroll
    for (int i = 0; i < kSumWarps; ++i) {
      total += sums[i][column % N][column / N];
    }
    partial[blockIdx.y * cols + first + column] = total;
  }
}

/// sums [C] f32 = (or +=) the sums of dy's columns.
void sum_columns(Context& ctx, const Tensor& dy, const Tensor& sums, Write write) {
  constexpr std::int64_t kMostSlabs = 128;
  const std::int64_t rows = dy.rows();
  const std::int64_t cols = dy.cols();
  visit_float(dy.dtype(), [&](auto type) {
    using T = decltype(type);
    const auto launch = [&](auto lanes) {
      constexpr int N = decltype(lanes)::value;
      const auto across = ceil_div<std::int64_t>(cols, kWarp * N);
      const std::int64_t room = std::int64_t{kSumBlocks} * multiprocessors(ctx) / across;
      const std::int64_t slabs = std::clamp<std::int64_t>(room, 1, std::min(kMostSlabs, rows));
      const Tensor partial = ctx.scratch({{slabs, cols}});
      const dim3 blocks(static_cast<unsigned>(across), static_cast<unsigned>(slabs));
      column_sums_of_slabs<N>
          <<<blocks, kThreads, 0, stream_of(ctx)>>>(data_of<T>(dy), rows, cols, partial.f32());
      CUDA_CHECK_LAUNCH();
      add_shares(ctx, partial, std::array{sums}, write);
    };
    if (cols % kLanesOf<T> == 0 && aligned16(dy.raw())) {
      launch(std::integral_constant<int, kLanesOf<T>>{});
    } else {
      launch(std::integral_constant<int, 1>{});
    }
  });
}

/// A gate's product: its weights stay fp32 while the model computes in bf16.
bool is_gate(const Tensor& activation, const Tensor& weight) {
  return weight.dtype() == DType::kF32 && activation.dtype() == DType::kBF16;
}

Matmul forward_product(const Tensor& x, const Tensor& weight, const Tensor& y) {
  return {.left = {x}, .right = {weight, true}, .result = y};
}

Matmul backward_product(const Tensor& dy, const Tensor& weight, const Tensor& dx) {
  return {.left = {dy}, .right = {weight}, .result = dx};
}

/// dpre = (dy W) gelu'(pre) and db = (or +=) the sums of its columns, in one of three ways.
struct GeluGradient {
  const Tensor& dy;
  const Tensor& weight;
  const SavedGelu& saved;
  const Tensor& dpre;
  Tensor dbias;  // or empty
  Write write;

  Matmul product() const {
    Matmul fused = backward_product(dy, weight, dpre);
    fused.epilogue = Epilogue::kGeluGradient;
    fused.aux = saved.kept();
    return fused;
  }

  /// By Hopper's kernel.
  bool own_serves(Context& ctx) const {
    return hopper_serves_backward_gelu(ctx, dy, weight, saved, dpre);
  }
  void own(Context& ctx) const { hopper_backward_gelu(ctx, dy, weight, saved, dpre, dbias, write); }

  /// With the GELU in cuBLASLt's epilogue.
  void together(Context& ctx) const {
    ctx.state<MatmulPlans>().run(ctx, product());
    add_bias_gradient(ctx);
  }

  void apart(Context& ctx) const {
    ctx.state<MatmulPlans>().run(ctx, backward_product(dy, weight, dpre));
    if (saved.slope) {
      map(ctx, saved.slope, dpre, Times{});
    } else {
      map(ctx, saved.input, dpre, TimesGeluDerivative{});
    }
    add_bias_gradient(ctx);
  }

  void run_fastest(Context& ctx, const std::string& name) const {
    ctx.state<Choices>().run_fastest(
        ctx, name,
        {{"own", [&] { return own_serves(ctx); }, [&] { own(ctx); }},
         {"together", [&] { return ctx.state<MatmulPlans>().serves(ctx, product()); },
          [&] { together(ctx); }},
         {"apart", [] { return true; }, [&] { apart(ctx); }}});
  }

 private:
  void add_bias_gradient(Context& ctx) const {
    if (dbias) {
      sum_columns(ctx, dpre, dbias, write);
    }
  }
};

/// dW = (or +=) dyᵀ x and db likewise, in one of two ways.
struct WeightGradient {
  const Tensor& x;
  const Tensor& dy;
  Tensor dweight;
  Tensor dbias;  // or empty
  Write write;

  Matmul product() const {
    return {.left = {dy, true},
            .right = {x},
            .result = dweight,
            .accumulate = write == Write::kAccumulate};
  }

  /// The product with the sums of dy in its epilogue.
  Matmul fused(Context& ctx) const {
    Matmul fused = product();
    fused.epilogue = Epilogue::kBiasGradient;
    fused.vector = write == Write::kOverwrite ? dbias : ctx.scratch({{dy.cols()}});
    return fused;
  }
  void together(Context& ctx) const {
    const Matmul both = fused(ctx);
    ctx.state<MatmulPlans>().run(ctx, both);
    if (write == Write::kAccumulate) {
      add_shares(ctx, both.vector, std::array{dbias}, write);
    }
  }

  void apart(Context& ctx) const {
    ctx.state<MatmulPlans>().run(ctx, product());
    if (dbias) {
      sum_columns(ctx, dy, dbias, write);
    }
  }

  void run_fastest(Context& ctx, const std::string& name) const {
    ctx.state<Choices>().run_fastest(
        ctx, name,
        {{"together", [&] { return ctx.state<MatmulPlans>().serves(ctx, fused(ctx)); },
          [&] { together(ctx); }},
         {"apart", [] { return true; }, [&] { apart(ctx); }}});
  }
};

}  // namespace

// On a GPU bits may depend on how many rows are computed together; `rounding` is the CPU's.
void linear(Context& ctx, const Tensor& x, const Tensor& weight, const Tensor& bias,
            const Tensor& y, Rounding /*rounding*/) {
  if (serves_few_rows(x, weight, bias, {}, {}, y)) {
    few_rows_linear(ctx, x, weight, bias, {}, {}, y);
    return;
  }
  if (is_gate(x, weight)) {
    narrow_linear(ctx, x, weight, bias, y);
    return;
  }
  Matmul product = forward_product(x, weight, y);
  if (bias) {
    product.epilogue = Epilogue::kBias;
    product.vector = bias;
  }
  ctx.state<MatmulPlans>().run(ctx, product);
}

void linear_add(Context& ctx, const Tensor& x, const Tensor& weight, const Tensor& bias,
                const Tensor& residual, const Tensor& y, Rounding /*rounding*/) {
  if (serves_few_rows(x, weight, bias, residual, {}, y)) {
    few_rows_linear(ctx, x, weight, bias, residual, {}, y);
    return;
  }
  Matmul product = forward_product(x, weight, y);
  product.addend = residual;
  if (bias) {
    product.epilogue = Epilogue::kBias;
    product.vector = bias;
  }
  ctx.state<MatmulPlans>().run(ctx, product);
}

void linear_gelu(Context& ctx, const Tensor& x, const Tensor& weight, const Tensor& bias,
                 const SavedGelu& saved, const Tensor& y, Rounding rounding) {
  const Tensor& kept = saved.kept();
  if (saved.input && serves_few_rows(x, weight, bias, {}, kept, y)) {
    few_rows_linear(ctx, x, weight, bias, {}, kept, y);
    return;
  }
  Matmul fused = forward_product(x, weight, y);
  fused.epilogue = bias ? Epilogue::kBiasGelu : Epilogue::kGelu;
  fused.vector = bias;
  fused.aux = kept;
  const auto own_serves = [&] { return hopper_serves_gelu(ctx, x, weight, bias, saved, y); };
  const auto own = [&] { hopper_linear_gelu(ctx, x, weight, bias, saved, y); };
  const auto apart = [&] {
    cuda::linear(ctx, x, weight, bias, kept, rounding);
    map(ctx, kept, y, Gelu{});
    if (saved.slope) {
      map(ctx, kept, kept, GeluDerivative{});
    }
  };
  if (saved.slope) {  // which cuBLASLt does not make
    own_serves() ? own() : apart();
  } else if (y.dtype() == DType::kF32) {
    apart();  // cuBLASLt's GELU is good to 3e-6 only
  } else {
    ctx.state<Choices>().run_fastest(
        ctx, "gelu." + name_of(fused),
        {{"own", own_serves, own},
         {"together", [&] { return ctx.state<MatmulPlans>().serves(ctx, fused); },
          [&] { ctx.state<MatmulPlans>().run(ctx, fused); }},
         {"apart", [] { return true; }, apart}});
  }
}

void gelu(Context& ctx, const Tensor& pre, const Tensor& y) { map(ctx, pre, y, Gelu{}); }

void linear_backward_input(Context& ctx, const Tensor& dy, const Tensor& weight, const Tensor& dx,
                           Write write) {
  if (is_gate(dx, weight)) {
    narrow_backward_input(ctx, dy, weight, dx, write);
    return;
  }
  Matmul product = backward_product(dy, weight, dx);
  product.accumulate = write == Write::kAccumulate;
  ctx.state<MatmulPlans>().run(ctx, product);
}

void linear_backward_gelu(Context& ctx, const Tensor& dy, const Tensor& weight,
                          const SavedGelu& saved, const Tensor& dpre, const Tensor& dbias,
                          Write write) {
  const GeluGradient gradient{dy, weight, saved, dpre, dbias, write};
  if (saved.slope && gradient.own_serves(ctx)) {
    gradient.own(ctx);
    return;
  }
  if (saved.slope || dpre.dtype() == DType::kF32) {
    gradient.apart(ctx);
    return;
  }
  const std::string name =
      fmt::format("dgelu.{}{}", name_of(gradient.product()), dbias ? ".sums" : "");
  if (dbias &&
      ctx.state<Choices>().find(name) == nullptr) {  // trials must not touch what is added to
    const Memory trial(ctx.device(), dbias.bytes());
    GeluGradient tried = gradient;
    tried.dbias = Tensor(trial.data(), {dbias.shape()}, ctx.device());
    clear(ctx, tried.dbias);
    tried.run_fastest(ctx, name);
  }
  gradient.run_fastest(ctx, name);
}

void linear_backward_weight(Context& ctx, const Tensor& x, const Tensor& dy, const Tensor& dweight,
                            const Tensor& dbias, Write write) {
  if (dy.dtype() == DType::kF32 && x.dtype() == DType::kBF16) {
    narrow_backward_weight(ctx, x, dy, dweight, dbias, write);
    return;
  }
  if (!dweight) {
    if (dbias) {
      sum_columns(ctx, dy, dbias, write);
    }
    return;
  }
  const WeightGradient gradient{x, dy, dweight, dbias, write};
  if (!dbias) {
    gradient.apart(ctx);
    return;
  }
  const std::string name = "bgrad." + name_of(gradient.product());
  if (ctx.state<Choices>().find(name) == nullptr) {  // trials must not touch what is added to
    const Memory trial(ctx.device(), dweight.bytes());
    const Memory trial_bias(ctx.device(), dbias.bytes());
    const WeightGradient tried{x, dy, Tensor(trial.data(), {dweight.shape()}, ctx.device()),
                               Tensor(trial_bias.data(), {dbias.shape()}, ctx.device()), write};
    clear(ctx, tried.dweight);
    clear(ctx, tried.dbias);
    tried.run_fastest(ctx, name);
  }
  gradient.run_fastest(ctx, name);
}

}  // namespace carope::cuda
