#pragma once

#include "ops/cuda/kernel.cuh"

// Reductions over a block of kThreads threads in one dimension. Every thread gets the result, and
// the order is fixed.
namespace carope::cuda {

template <int kThreads, class T, class ReduceWarp>
__device__ T block_reduce(T x, T neutral, const ReduceWarp& reduce_warp) {
  constexpr unsigned kWarps = kThreads / kWarp;
  static_assert(kThreads % kWarp == 0 && kWarps <= kWarp);
  __shared__ T shares[kWarps];
  const unsigned lane = threadIdx.x % kWarp;
  x = reduce_warp(x);
  __syncthreads();  // an earlier call's shares may still be read
  if (lane == 0) {
    shares[threadIdx.x / kWarp] = x;
  }
  __syncthreads();
  return reduce_warp(lane < kWarps ? shares[lane] : neutral);
}

template <int kThreads, class T>
__device__ T block_sum(T x) {
  return block_reduce<kThreads>(x, T{0}, [](T share) { return warp_sum(share); });
}

template <int kThreads>
__device__ float block_max(float x) {
  return block_reduce<kThreads>(x, -INFINITY, [](float share) { return warp_max(share); });
}

}  // namespace carope::cuda
