#include "ops/block_weights.h"

#include "ops/kernel.cuh"

namespace carope::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kEach = kWeightBlock / kWarp;  // logits of a lane

/// A warp a block of logits.
__global__ void __launch_bounds__(kThreads)
    block_weights_kernel(const float* logits, std::int64_t count, double temperature,
                         double* weights, std::int64_t blocks) {
  const std::int64_t block =
      (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) / kWarp;
  if (block >= blocks) {
    return;
  }
  const std::int64_t first = block * kWeightBlock + threadIdx.x % kWarp;
  float values[kEach];
  float highest = -__builtin_huge_valf();
  float zero = 0.0F;  // but for x - x of what is not finite
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const std::int64_t at = first + i * static_cast<int>(kWarp);
    values[i] = at < count ? logits[at] : -__builtin_huge_valf();
    highest = fmaxf(highest, values[i]);
    zero += at < count ? values[i] - values[i] : 0.0F;
  }
  highest = warp_max(highest);
  double sum = 0.0;
#pragma unroll
  for (const float value : values) {
    sum += exp((static_cast<double>(value) - highest) / temperature);
  }
  sum = warp_sum(sum);
  zero = warp_sum(zero);
  if (threadIdx.x % kWarp == 0) {
    weights[2 * block] = highest + zero;
    weights[2 * block + 1] = sum;
  }
}

}  // namespace

void block_weights(Context& ctx, const Tensor& logits, double temperature, const Tensor& weights) {
  const std::int64_t blocks = weight_blocks(logits.size());
  const auto grid = static_cast<unsigned>(ceil_div<std::int64_t>(blocks, kThreads / kWarp));
  block_weights_kernel<<<grid, kThreads, 0, stream_of(ctx)>>>(
      logits.f32(), logits.size(), temperature, weights.data<double>(), blocks);
  CUDA_CHECK_LAUNCH();
}

}  // namespace carope::cuda
