#pragma once

#include "ops/norm.h"

namespace carope::cuda {

/// layer_norm() with its gate, in one kernel. Returns false, having done nothing, where there is
/// none: unless activations are bf16, of a common width, and logits are few.
bool norm_with_gate(Context& ctx, const Tensor& x, const NormWeights& weights, const Normed& out,
                    const NormGate& gate);

}  // namespace carope::cuda
