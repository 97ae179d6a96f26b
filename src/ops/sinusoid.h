#pragma once

#include "core/context.h"
#include "ops/sequence.h"

namespace carope {

/// x[b, t, 2i] += scale sin(position ω_i) and x[b, t, 2i + 1] += scale cos(position ω_i), with
/// ω_i = 10 000^(-2i/C) given as turns: increments [C/2] u32. x [B, T, C]. It has no gradient to
/// pass on.
void add_sinusoid(Context& ctx, const Sequence& seq, const Tensor& increments, float scale,
                  const Tensor& x);

}  // namespace carope
