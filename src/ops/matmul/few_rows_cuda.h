#pragma once

#include "core/context.h"

// Dense layers of a few rows, as when a text is written token by token: all the time goes into
// reading the weights once.
namespace carope::cuda {

/// y = x Wᵀ + b, with `residual` y = x Wᵀ + b + residual, or with `pre`: pre = x Wᵀ + b and
/// y = gelu(pre). A row's result does not depend on
/// which rows come with it. Returns false, having done nothing, if there are too many rows or their
/// types or widths are unusual.
bool few_rows_linear(Context& ctx, const Tensor& x, const Tensor& weight, const Tensor& bias,
                     const Tensor& residual, const Tensor& pre, const Tensor& y);

}  // namespace carope::cuda
