#pragma once

#include "ops/linear.h"
#include "ops/norm.h"

namespace carope {

/// A layer norm and the dense layer behind it.
struct NormedLinear {
  Tensor x;  // [N, C]
  NormWeights norm;
  Normed normed;
  NormGate gate{};   // reads the norm's result too
  Tensor weight;     // [O, C]
  Tensor bias;       // [O]
  SavedGelu gelu{};  // of a GELU behind it all; or empty
  Tensor y;          // [N, O]
};

/// layer_norm(), then linear() or linear_gelu(); in one pass where there is one row.
void normed_linear(Context& ctx, const NormedLinear& args,
                   Rounding rounding = Rounding::kAsFastest);

}  // namespace carope
