#include "core/context.h"

#include <omp.h>

#include <algorithm>
#include <cstring>

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
  const std::string trouble = cuda::trouble();
  check<DeviceError>(0 <= index && index < count,
                     "cuda:{} was asked for, but {} CUDA devices are present{}{}; carope devices "
                     "lists what there is",
                     index, count, trouble.empty() ? "" : ": ", trouble);
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

void clear(Context& ctx, const Tensor& tensor) {
  if (ctx.device().kind == DeviceKind::kCuda) {
    cuda::clear_on_stream(ctx.stream(), tensor.raw(), tensor.bytes());
  } else {
    std::memset(tensor.raw(), 0, tensor.bytes());
  }
}

void upload(Context& ctx, const void* from, const Tensor& to) {
  if (ctx.device().kind == DeviceKind::kCuda) {
    cuda::upload_on_stream(ctx.stream(), to.raw(), from, to.bytes());
  } else {
    std::memcpy(to.raw(), from, to.bytes());
  }
}

void download(Context& ctx, const Tensor& from, void* to) {
  if (ctx.device().kind == DeviceKind::kCuda) {
    cuda::download_on_stream(ctx.stream(), to, from.raw(), from.bytes());
  } else {
    std::memcpy(to, from.raw(), from.bytes());
  }
}

void copy(Context& ctx, const Tensor& from, const Tensor& to) {
  check<ShapeError>(from.bytes() == to.bytes(), "{} bytes cannot be copied into {}", from.bytes(),
                    to.bytes());
  if (ctx.device().kind == DeviceKind::kCuda) {
    cuda::copy_on_stream(ctx.stream(), to.raw(), from.raw(), to.bytes());
  } else {
    std::memcpy(to.raw(), from.raw(), to.bytes());
  }
}

void wait(Context& ctx) {
  if (ctx.device().kind == DeviceKind::kCuda) {
    cuda::wait_for_stream(ctx.stream());
  }
}

}  // namespace carope
