#pragma once

#include "core/context.h"
#include "ops/write.h"

namespace carope::cuda {
void narrow_linear(Context& ctx, const Tensor& x, const Tensor& weight, const Tensor& bias,
                   const Tensor& y);
void narrow_backward_input(Context& ctx, const Tensor& dy, const Tensor& weight, const Tensor& dx,
                           Write write);
void narrow_backward_weight(Context& ctx, const Tensor& x, const Tensor& dy, const Tensor& dweight,
                            const Tensor& dbias, Write write);
}  // namespace carope::cuda
