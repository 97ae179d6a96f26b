#include "ops/matmul/narrow_linear.cuh"

namespace carope::cuda {
namespace {

constexpr int kThreads = kNarrowThreads;
constexpr int kWarps = kNarrowWarps;

// Forward for bf16, on tensor cores. A block has all weights in shared memory, split, and a warp
// takes 32 rows, whose columns pass through its pipeline.

constexpr int kTensorWarps = 8;
constexpr int kStages = 4;
constexpr int kTensorThreads = kTensorWarps * static_cast<int>(kWarp);
constexpr int kTileOutputs = 8;
constexpr int kStepColumns = 32;  // columns a lane has one access of weights for
constexpr int kRowTiles = kStageRows / 16;

/// Where a step's weights are: [steps][tiles of outputs][parts][lanes].
template <int kTiles>
__device__ int weights_at(int step, int tile) {
  return (step * kTiles + tile) * kParts * static_cast<int>(kWarp);
}

template <int kTiles>
__device__ void split_weights(const float* weight, int first_output, int outputs, int columns,
                              int steps, Words* parts) {
#pragma unroll 3
  for (int i = static_cast<int>(threadIdx.x); i < steps * kTiles * static_cast<int>(kWarp);
       i += kTensorThreads) {
    const int lane = i % static_cast<int>(kWarp);
    const int tile = i / static_cast<int>(kWarp) % kTiles;
    const int step = i / static_cast<int>(kWarp) / kTiles;
    const int output = first_output + tile * kTileOutputs + lane / 4;
    float numbers[8];
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      const int column = step * kStepColumns + word * 8 + lane % 4 * 2;
      Vec<float, 2> two = {};
      if (output < outputs && column < columns) {
        two = Vec<float, 2>::load(weight + static_cast<std::int64_t>(output) * columns + column);
      }
      numbers[2 * word] = two.at[0];
      numbers[2 * word + 1] = two.at[1];
    }
    split(numbers, parts + weights_at<kTiles>(step, tile) + lane, kWarp);
  }
}

template <int kTiles>
__global__ void __launch_bounds__(kTensorThreads)
    forward_tensor_kernel(const bf16* x, const float* weight, const float* bias, float* y,
                          std::int64_t rows, int columns, int outputs) {
  extern __shared__ __align__(1024) std::byte shared[];
  const auto lane = static_cast<int>(threadIdx.x % kWarp);
  const auto warp = static_cast<int>(threadIdx.x / kWarp);
  const std::int64_t first =
      (static_cast<std::int64_t>(blockIdx.x) * kTensorWarps + warp) * kStageRows;
  const int first_output = static_cast<int>(blockIdx.y) * kTiles * kTileOutputs;
  const int stages = (columns + kStageColumns - 1) / kStageColumns;
  const Pipeline<kStages> pipeline(shared_address(shared) + warp * Pipeline<kStages>::kBytes, x,
                                   rows, columns);
  auto* parts = reinterpret_cast<Words*>(shared + kTensorWarps * Pipeline<kStages>::kBytes);
  const auto start = [&](int stage) {
    if (stage < stages) {
      pipeline.start(stage, first, stage * kStageColumns);
    }
    close_copies();
  };
  for (int stage = 0; stage < kStages - 1; ++stage) {
    start(stage);
  }
  split_weights<kTiles>(weight, first_output, outputs, columns, 2 * stages, parts);
  __syncthreads();
  float sum[kTiles][kRowTiles][4] = {};
  float small[kTiles][kRowTiles][4] = {};
  for (int stage = 0; stage < stages; ++stage) {
    wait_for_copies<kStages - 2>();
    __syncwarp();
    start(stage + kStages - 1);
    const SharedRows<kStageColumns> values = pipeline.stage(stage);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      Fragment a[kRowTiles][2];
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) {
        a[i][0] = values.load(i * 16, 2 * half);
        a[i][1] = values.load(i * 16, 2 * half + 1);
      }
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const Words* w = parts + weights_at<kTiles>(2 * stage + half, tile) + lane;
        float piece[kRowTiles][4] = {};
#pragma unroll
        for (int part = kParts - 1; part >= 0; --part) {
          const Words b = w[part * static_cast<int>(kWarp)];
#pragma unroll
          for (int i = 0; i < kRowTiles; ++i) {
            float(&target)[4] = part == 0 ? piece[i] : small[tile][i];
            multiply_add(target, a[i][0], b.at[0], b.at[1]);
            multiply_add(target, a[i][1], b.at[2], b.at[3]);
          }
        }
#pragma unroll
        for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            sum[tile][i][k] += piece[i][k];
          }
        }
      }
    }
  }
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const std::int64_t row = first + i * 16 + k / 2 * 8 + lane / 4;
        const int output = first_output + tile * kTileOutputs + lane % 4 * 2 + k % 2;
        if (row < rows && output < outputs) {
          y[row * outputs + output] =
              sum[tile][i][k] + small[tile][i][k] + (bias == nullptr ? 0.0F : bias[output]);
        }
      }
    }
  }
}

constexpr int kPlainRows = 4;
constexpr int kPlainOutputs = 8;

/// Four rows and eight outputs a warp, whose lanes share the columns.
template <class T>
__global__ void __launch_bounds__(kThreads)
    forward_plain_kernel(const T* x, const float* weight, const float* bias, float* y,
                         std::int64_t rows, int columns, int outputs) {
  const auto lane = static_cast<int>(threadIdx.x % kWarp);
  const std::int64_t first =
      (static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp) * kPlainRows;
  const int first_output = static_cast<int>(blockIdx.y) * kPlainOutputs;
  float sum[kPlainRows][kPlainOutputs] = {};
  for (int c = lane; c < columns; c += static_cast<int>(kWarp)) {
    float value[kPlainRows];
#pragma unroll
    for (int r = 0; r < kPlainRows; ++r) {
      value[r] = to_float(x[min(first + r, rows - 1) * columns + c]);
    }
#pragma unroll
    for (int o = 0; o < kPlainOutputs; ++o) {
      const float w =
          weight[static_cast<std::int64_t>(min(first_output + o, outputs - 1)) * columns + c];
#pragma unroll
      for (int r = 0; r < kPlainRows; ++r) {
        sum[r][o] = fmaf(value[r], w, sum[r][o]);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kPlainRows; ++r) {
#pragma unroll
    for (int o = 0; o < kPlainOutputs; ++o) {
      const float total = warp_sum(sum[r][o]);
      const int output = first_output + o;
      if (lane == 0 && first + r < rows && output < outputs) {
        y[(first + r) * outputs + output] = total + (bias == nullptr ? 0.0F : bias[output]);
      }
    }
  }
}

template <class T>
void forward_plain(Context& ctx, const Tensor& x, const Tensor& weight, const float* bias,
                   const Tensor& y) {
  const dim3 grid(blocks_for(x.rows(), kWarps * kPlainRows), blocks_for(y.cols(), kPlainOutputs));
  forward_plain_kernel<<<grid, kThreads, 0, stream_of(ctx)>>>(
      data_of<T>(x), weight.f32(), bias, y.f32(), x.rows(), static_cast<int>(x.cols()),
      static_cast<int>(y.cols()));
  CUDA_CHECK_LAUNCH();
}

/// Shared memory of a block that has so many tiles of outputs.
std::int64_t forward_bytes(std::int64_t columns, int tiles) {
  const std::int64_t steps = 2 * ceil_div<std::int64_t>(columns, kStageColumns);
  return kTensorWarps * Pipeline<kStages>::kBytes +
         steps * tiles * kParts * kWarp * static_cast<std::int64_t>(sizeof(Words));
}

template <int kTiles>
void forward_tensor(Context& ctx, const Tensor& x, const Tensor& weight, const float* bias,
                    const Tensor& y) {
  const auto kernel = forward_tensor_kernel<kTiles>;
  const auto bytes = static_cast<int>(forward_bytes(x.cols(), kTiles));
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  const dim3 grid(blocks_for(x.rows(), kTensorWarps * kStageRows),
                  blocks_for(y.cols(), kTiles * kTileOutputs));
  kernel<<<grid, kTensorThreads, bytes, stream_of(ctx)>>>(
      data_of<bf16>(x), weight.f32(), bias, y.f32(), x.rows(), static_cast<int>(x.cols()),
      static_cast<int>(y.cols()));
  CUDA_CHECK_LAUNCH();
}

}  // namespace

void narrow_linear(Context& ctx, const Tensor& x, const Tensor& weight, const Tensor& bias,
                   const Tensor& y) {
  const float* b = bias ? bias.f32() : nullptr;
  const bool tensor =
      x.dtype() == DType::kBF16 && rows_align<bf16>(x, 8) && rows_align<float>(weight, 2);
  const int most = shared_bytes(ctx);
  if (tensor && y.cols() > kTileOutputs && forward_bytes(x.cols(), 2) <= most) {
    forward_tensor<2>(ctx, x, weight, b, y);
  } else if (tensor && forward_bytes(x.cols(), 1) <= most) {
    forward_tensor<1>(ctx, x, weight, b, y);
  } else {
    visit_float(x.dtype(), [&](auto zero) { forward_plain<decltype(zero)>(ctx, x, weight, b, y); });
  }
}

}  // namespace carope::cuda
