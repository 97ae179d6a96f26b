#pragma once

#include "core/context.h"

namespace carope {

/// total [1] f64 += scale Σ x, summed in fp64 in an order that depends on the size of x alone.
void add_sum(Context& ctx, const Tensor& x, double scale, const Tensor& total);

}  // namespace carope
