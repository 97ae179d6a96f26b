#pragma once

#include <utility>

#include "core/context.h"

namespace carope {

/// Runs an operation's kernel for the context's device. A build without CUDA links no_cuda.cpp in
/// the place of the CUDA kernels.
template <class Kernel, class... Args>
decltype(auto) dispatch(Context& ctx, Kernel& cpu, Kernel& cuda, Args&&... args) {
  Kernel& kernel = ctx.device().kind == DeviceKind::kCuda ? cuda : cpu;
  return kernel(ctx, std::forward<Args>(args)...);
}

}  // namespace carope
