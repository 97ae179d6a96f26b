#pragma once

#include "ops/norm.h"

namespace carope::cuda {

/// layer_norm() with its gate, in one kernel; and whether it is served: activations are bf16, of a
/// common width, and logits are few.
bool serves_norm_with_gate(Context& ctx, const Tensor& x, const Normed& out, const NormGate& gate);
void norm_with_gate(Context& ctx, const Tensor& x, const NormWeights& weights, const Normed& out,
                    const NormGate& gate);

}  // namespace carope::cuda
