// Kernels: what CUDA's runtime is told of them, and their launches.
#include <cstring>
#include <string_view>

#include "ptx/program.h"
#include "state.h"

namespace carope::fake {
namespace {

/// Kernels by the address of what the host calls. They are registered before main() begins.
std::map<const void*, std::string>& kernels() {
  static std::map<const void*, std::string> known;
  return known;
}

struct Configuration {
  dim3 grid, block;
  std::size_t shared = 0;
  cudaStream_t stream = nullptr;
};
thread_local Configuration configuration;

/// The largest block of a kernel. Some are empty but on devices that have what they need, and then
/// take no more than a warp.
int most_threads(const std::string& kernel, const Gpu& gpu) {
  constexpr int kMost = 1024;
  constexpr int kOfEmpty = 32;
  constexpr int kHopper = 9;
  const auto is = [&](std::string_view name) { return kernel.find(name) != std::string::npos; };
  if (is("rotate_and_attend") || is("all_gradients") || is("8multiply")) {
    return gpu.compute_major == kHopper ? kMost : kOfEmpty;
  }
  return kMost;
}

bool is_possible(const dim3& grid, const dim3& block, int most) {
  constexpr unsigned kMostAcross = 65535;
  constexpr unsigned kMostDeep = 64;
  const auto threads = static_cast<std::uint64_t>(block.x) * block.y * block.z;
  return grid.x > 0 && grid.x <= unsigned{kMostWide} && grid.y > 0 && grid.y <= kMostAcross &&
         grid.z > 0 && grid.z <= kMostAcross && threads > 0 &&
         threads <= static_cast<unsigned>(most) && block.z <= kMostDeep;
}

bool is_possible_cluster(unsigned blocks, const dim3& grid, const Gpu& gpu) {
  constexpr unsigned kMost = 8;
  constexpr int kHopper = 9;
  return gpu.compute_major >= kHopper && blocks > 0 && blocks <= kMost && grid.x % blocks == 0;
}

ptx::Size size_of(const dim3& size) { return {size.x, size.y, size.z}; }

/// Runs a kernel now, or whenever the graph that is captured runs.
cudaError_t compute(const std::string& name, void** arguments, const ptx::Launch& launch) {
  try {
    const ptx::Kernel& kernel = ptx::kernel_named(name);
    if (launch.block.count() > kernel.most_threads) {
      return refuse(cudaErrorInvalidValue);
    }
    if (kernel.dynamic_shared + launch.dynamic_shared >
        static_cast<std::size_t>(state().current_gpu().shared_bytes)) {
      return refuse(cudaErrorLaunchOutOfResources);
    }
    std::vector<std::byte> parameters(kernel.parameter_bytes);
    for (std::size_t i = 0; i < kernel.parameters.size(); ++i) {
      std::memcpy(parameters.data() + kernel.parameters[i].offset, arguments[i],
                  kernel.parameters[i].bytes);
    }
    return give([&kernel, launch, parameters]() mutable {
      try {
        ptx::Machine(kernel, launch, parameters).run();
        return cudaSuccess;
      } catch (const ptx::Fault& fault) {
        state().fault = fault.what();
        return refuse(cudaErrorLaunchFailure);
      }
    });
  } catch (const ptx::Fault& fault) {
    state().fault = fault.what();
    return refuse(cudaErrorLaunchFailure);
  }
}

cudaError_t launch(const void* kernel, const Configuration& c, void** arguments,
                   const cudaLaunchAttribute* attributes, unsigned count) {
  constexpr std::size_t kUsualShared = 48 * 1024;
  State& s = state();
  const auto known = kernels().find(kernel);
  if (known == kernels().end()) {
    return refuse(cudaErrorInvalidDeviceFunction);
  }
  if (const cudaError_t error = check_stream(c.stream); error != cudaSuccess) {
    return error;
  }
  const Gpu& gpu = s.current_gpu();
  if (!is_possible(c.grid, c.block, most_threads(known->second, gpu))) {
    return refuse(cudaErrorInvalidConfiguration);
  }
  const auto limit = s.shared_limits.find({kernel, s.current()});
  const auto most =
      limit == s.shared_limits.end() ? kUsualShared : static_cast<std::size_t>(limit->second);
  if (c.shared > most) {
    return refuse(cudaErrorInvalidValue);
  }
  ptx::Launch wanted{size_of(c.grid), size_of(c.block), c.shared};
  for (unsigned i = 0; i < count; ++i) {
    const bool cooperates = attributes[i].id == cudaLaunchAttributeCooperative;
    const bool clusters = attributes[i].id == cudaLaunchAttributeClusterDimension;
    if (cooperates && wanted.grid.count() > static_cast<std::size_t>(gpu.multiprocessors)) {
      return refuse(cudaErrorCooperativeLaunchTooLarge);
    }
    if (clusters && !is_possible_cluster(attributes[i].val.clusterDim.x, c.grid, gpu)) {
      return refuse(cudaErrorInvalidClusterSize);
    }
    wanted.all_at_once = wanted.all_at_once || cooperates;
    wanted.cluster = clusters ? attributes[i].val.clusterDim.x : wanted.cluster;
    wanted.early =
        wanted.early || attributes[i].id == cudaLaunchAttributeProgrammaticStreamSerialization;
  }
  ++s.asked.launches;
  s.launched.push_back(known->second);
  return gpu.computes ? compute(known->second, arguments, wanted) : cudaSuccess;
}

}  // namespace
}  // namespace carope::fake

using namespace carope::fake;

extern "C" {

// What the compiler calls.

void** __cudaRegisterFatBinary(void* wrapper) {
  carope::ptx::add_fat_binary(wrapper);
  return nullptr;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterVar(void**, char*, char*, const char*, int, std::size_t, int, int) {}
void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int, uint3*, uint3*,
                            dim3*, dim3*, int*) {
  kernels()[host] = name;
}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, std::size_t shared,
                                     CUstream_st* stream) {
  configuration = {grid, block, shared, stream};
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, std::size_t* shared, void* stream) {
  *grid = configuration.grid;
  *block = configuration.block;
  *shared = configuration.shared;
  *static_cast<cudaStream_t*>(stream) = configuration.stream;
  return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* host) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(host));
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
                               std::size_t shared, cudaStream_t stream) {
  return launch(kernel, {grid, block, shared, stream}, arguments, nullptr, 0);
}
cudaError_t cudaLaunchKernel(const void* kernel, dim3 grid, dim3 block, void** arguments,
                             std::size_t shared, cudaStream_t stream) {
  return launch(kernel, {grid, block, shared, stream}, arguments, nullptr, 0);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel,
                                void** arguments) {
  return launch(kernel,
                {config->gridDim, config->blockDim, config->dynamicSmemBytes, config->stream},
                arguments, config->attrs, config->numAttrs);
}

// Kernels.

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel) {
  const Gpu& gpu = state().current_gpu();
  const std::string& name = kernels()[kernel];
  *attributes = {};
  attributes->maxThreadsPerBlock = most_threads(name, gpu);
  // CUB's kernels are looked for among those that were compiled; ours are taken for the GPU's.
  attributes->ptxVersion = name.find("EmptyKernel") != std::string::npos
                               ? FAKE_GPUS_COMPILED_FOR
                               : 10 * gpu.compute_major + gpu.compute_minor;
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
    if (value > state().current_gpu().shared_bytes) {
      return refuse(cudaErrorInvalidValue);
    }
    state().shared_limits[{kernel, state().current()}] = value;
  }
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int,
                                                                   std::size_t, unsigned) {
  *blocks = 1;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void*, const cudaLaunchConfig_t*) {
  *clusters = state().current_gpu().multiprocessors / 2;
  return cudaSuccess;
}

}  // extern "C"
