#include "ops/cuda/reduce.cuh"
#include "ops/sum.h"

namespace carope::cuda {
namespace {

constexpr int kThreads = 1024;

/// One block, so that the order depends on the size alone: a total is of a batch's losses, which
/// are few.
__global__ void __launch_bounds__(kThreads)
    add_sum_of(const float* x, std::int64_t size, double scale, double* total) {
  double sum = 0.0;
#pragma unroll 8
  for (std::int64_t i = threadIdx.x; i < size; i += kThreads) {
    sum += x[i];
  }
  sum = block_sum<kThreads>(sum);
  if (threadIdx.x == 0) {
    *total += scale * sum;
  }
}

}  // namespace

void add_sum(Context& ctx, const Tensor& x, double scale, const Tensor& total) {
  add_sum_of<<<1, kThreads, 0, stream_of(ctx)>>>(x.f32(), x.size(), scale, total.data<double>());
  CUDA_CHECK_LAUNCH();
}

}  // namespace carope::cuda
