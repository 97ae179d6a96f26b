#pragma once

#include "core/context.h"

// Dense layers of a few rows, as when a text is written token by token: all the time goes into
// reading the weights once.
namespace carope::cuda {

/// Whether few_rows_linear() takes so many rows, of such types and widths.
bool serves_few_rows(const Tensor& x, const Tensor& weight, const Tensor& bias,
                     const Tensor& residual, const Tensor& pre, const Tensor& y);

/// y = x Wᵀ + b, with `residual` y = x Wᵀ + b + residual, or with `pre`: pre = x Wᵀ + b and
/// y = gelu(pre). A row's result does not depend on which rows come with it.
void few_rows_linear(Context& ctx, const Tensor& x, const Tensor& weight, const Tensor& bias,
                     const Tensor& residual, const Tensor& pre, const Tensor& y);

}  // namespace carope::cuda
