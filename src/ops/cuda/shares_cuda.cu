#include "ops/cuda/kernel.cuh"
#include "ops/cuda/shares_cuda.h"

namespace carope::cuda {
namespace {

constexpr int kRows = 16;   // of threads in a block; each has every 16th share of 32 columns
constexpr int kAtOnce = 8;  // loads in flight of a thread

struct Totals {
  float* of[kMostTotals];
};

__global__ void __launch_bounds__(kRows* kWarp)
    add_shares_kernel(const float* shares, int count, std::int64_t width, std::int64_t stride,
                      const __grid_constant__ Totals totals, Write write) {
  const int lane = threadIdx.x % kWarp;
  const int first = threadIdx.x / kWarp;
  const std::int64_t column = std::int64_t{blockIdx.x} * kWarp + lane;
  float* to = column < stride ? totals.of[column / width] : nullptr;
  double sum = 0.0;
  if (to != nullptr) {
    for (int share = first; share < count; share += kRows * kAtOnce) {
      float loaded[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int at = share + i * kRows;
        loaded[i] = at < count ? shares[at * stride + column] : 0.0F;
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        sum += loaded[i];
      }
    }
  }
  __shared__ double sums[kRows][kWarp];
  sums[first][lane] = sum;
  __syncthreads();
  if (first == 0 && to != nullptr) {
    to += column % width;
    double total = write == Write::kAccumulate ? *to : 0.0;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      total += sums[i][lane];
    }
    *to = static_cast<float>(total);
  }
}

}  // namespace

void add_shares(Context& ctx, const Tensor& shares, std::span<const Tensor> totals, Write write) {
  Totals to{};
  for (std::size_t i = 0; i < totals.size(); ++i) {
    to.of[i] = totals[i] ? totals[i].f32() : nullptr;
  }
  const std::int64_t width = shares.cols();
  const std::int64_t stride = width * static_cast<std::int64_t>(totals.size());
  const auto count = static_cast<int>(shares.size() / stride);
  const auto blocks = static_cast<unsigned>(ceil_div<std::int64_t>(stride, kWarp));
  add_shares_kernel<<<blocks, kRows * kWarp, 0, stream_of(ctx)>>>(shares.f32(), count, width,
                                                                  stride, to, write);
  CUDA_CHECK_LAUNCH();
}

}  // namespace carope::cuda
