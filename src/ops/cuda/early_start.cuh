#pragma once

#include <type_traits>

#include "ops/cuda/kernel.cuh"

// Kernels that begin before the one before them is done. Between two short kernels the device would
// idle for longer than either runs; so a kernel that is launched early gets ready, and asks for
// what no kernel writes, such as weights, while the one before still runs.
namespace carope::cuda {

/// Lets the next kernel begin, if it was launched early, once every block has come here.
__device__ inline void let_next_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// Waits until the kernels before are done. A kernel that is launched early must call this before
/// it reads what they may have written, and before it writes anything.
__device__ inline void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// Asks for what is read later, so that it does not come from afar then.
__device__ inline void ask_for(const void* at) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}

/// Launches a kernel early, where it was compiled for a device that can.
template <class... Arguments>
void launch_early(const Context& ctx, void (*kernel)(Arguments...), dim3 blocks, dim3 threads,
                  const std::type_identity_t<Arguments>&... arguments) {
  constexpr int kHopper = 90;
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaFuncAttributes compiled{};
  CUDA_CHECK(cudaFuncGetAttributes(&compiled, kernel));
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = threads;
  config.stream = stream_of(ctx);
  config.attrs = &early;
  config.numAttrs = compiled.ptxVersion >= kHopper ? 1 : 0;
  CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, arguments...));
}

}  // namespace carope::cuda
