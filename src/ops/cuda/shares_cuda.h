#pragma once

#include <span>

#include "core/context.h"
#include "ops/write.h"

namespace carope::cuda {

/// The most sums that one call of add_shares() makes.
inline constexpr int kMostTotals = 3;

/// Adds up, in a fixed order, the shares [n, totals, C] that n blocks left of sums over rows.
/// A total [C] that is empty is skipped.
void add_shares(Context& ctx, const Tensor& shares, std::span<const Tensor> totals, Write write);

}  // namespace carope::cuda
