#include "core/context.h"

#include <omp.h>

#include <algorithm>

#include "core/cuda.h"

namespace carope {

Context Context::cpu(int threads) {
  constexpr int kMaxThreads = 1024;
  check<ConfigError>(0 <= threads && threads <= kMaxThreads,
                     "threads = {} is not possible; give 1 to {}, or 0 for every core", threads,
                     kMaxThreads);
  return {Device{}, threads == 0 ? std::max(1, omp_get_num_procs()) : threads};
}

Context Context::cuda(int index) {
  check<DeviceError>(
      cuda::compiled(),
      "cuda:{} was asked for, but this program was built without CUDA; use the CPU, or install "
      "the CUDA toolkit (nvcc) and build again with the preset 'cuda'",
      index);
  const auto count = static_cast<int>(cuda::devices().size());
  check<DeviceError>(0 <= index && index < count,
                     "cuda:{} was asked for, but {} CUDA devices are present", index, count);
  Context context({DeviceKind::kCuda, index}, 1);
  context.stream_ = cuda::make_stream(index);
  return context;
}

Tensor Context::scratch(const TensorSpec& spec) {
  if (spec.bytes() > scratch_.bytes()) {
    scratch_ = Memory(device_, spec.bytes());
  }
  return {scratch_.data(), spec, device_};
}

void require_cpu(const Context& context, const char* name) {
  if (context.device().kind != DeviceKind::kCpu) {
    throw DeviceError(fmt::format("{} has no kernel for {}; run it with a CPU context", name,
                                  to_string(context.device())));
  }
}

}  // namespace carope
