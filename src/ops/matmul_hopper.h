#pragma once

#include "core/context.h"
#include "ops/write.h"

// Matrix products with a GELU, in bf16 on Hopper. They return false, having done nothing, where
// they do not serve: on other GPUs, for other types, and for shapes that are not whole tiles.
namespace carope::cuda {

/// pre = x Wᵀ + b and y = gelu(pre). An empty bias is zero.
bool hopper_linear_gelu(Context& ctx, const Tensor& x, const Tensor& weight, const Tensor& bias,
                        const Tensor& pre, const Tensor& y);

/// dpre = (dy W) gelu'(pre), and dbias = (or +=) the sums of its columns unless it is empty.
bool hopper_backward_gelu(Context& ctx, const Tensor& dy, const Tensor& weight, const Tensor& pre,
                          const Tensor& dpre, const Tensor& dbias, Write write);

}  // namespace carope::cuda
