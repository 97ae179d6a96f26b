#include "ops/cuda/kernel.cuh"
#include "ops/offsets.h"

namespace carope::cuda {
namespace {

__global__ void advance_kernel(std::int32_t* offsets, int rows, int tokens) {
  const auto row = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (row < rows) {
    offsets[row] += tokens;
  }
}

}  // namespace

void advance(Context& ctx, const Tensor& offsets, std::int64_t tokens) {
  constexpr int kThreads = 128;
  const auto rows = static_cast<int>(offsets.size());
  advance_kernel<<<ceil_div(rows, kThreads), kThreads, 0, stream_of(ctx)>>>(
      data_of<std::int32_t>(offsets), rows, static_cast<int>(tokens));
  CUDA_CHECK_LAUNCH();
}

}  // namespace carope::cuda
