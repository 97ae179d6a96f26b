#pragma once

#include "core/context.h"

/// Runs the kernel `op` of the context's device. Each operation declares its kernels, one in
/// namespace cpu and one in namespace cuda; a build without CUDA has no context that asks for the
/// latter.
#ifdef CAROPE_WITH_CUDA
#define CAROPE_DISPATCH(op, ctx, ...)                                              \
  ((ctx).device().kind == ::carope::DeviceKind::kCuda ? cuda::op(ctx, __VA_ARGS__) \
                                                      : cpu::op(ctx, __VA_ARGS__))
#else
#define CAROPE_DISPATCH(op, ctx, ...) cpu::op(ctx, __VA_ARGS__)
#endif
