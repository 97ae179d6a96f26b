#pragma once

#include "core/context.h"
#include "ops/write.h"

// Dense layers with few outputs, as a gate's. Weights, results and sums are fp32; activations are
// float or bf16. A row's result does not depend on which rows come with it.
namespace carope::cuda {

/// y = x Wᵀ + b: x [N, C], weight [O, C], y [N, O]. An empty bias is zero.
void narrow_linear(Context& ctx, const Tensor& x, const Tensor& weight, const Tensor& bias,
                   const Tensor& y);

/// dx = dy W, or dx += dy W.
void narrow_backward_input(Context& ctx, const Tensor& dy, const Tensor& weight, const Tensor& dx,
                           Write write);

/// dW = dyᵀ x and db = Σ dy, or added to what is there. What is empty is skipped.
void narrow_backward_weight(Context& ctx, const Tensor& x, const Tensor& dy, const Tensor& dweight,
                            const Tensor& dbias, Write write);

}  // namespace carope::cuda
