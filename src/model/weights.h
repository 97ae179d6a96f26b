#pragma once

#include <functional>
#include <vector>

#include "core/parameter.h"
#include "model/block.h"
#include "model/config.h"
#include "position/encoding.h"

namespace carope {

/// Every parameter of a GPT by its role; or, in the same shape, every gradient.
struct GptWeights {
  Tensor embedding;  // [V, C], also the classifier
  Tensor positions;  // [positions, C] of LearnedPositions; or empty
  std::vector<BlockWeights> blocks;
  NormWeights final_norm;
};

/// Lists the parameters of a GPT in order, asking `place` for the tensor of each.
GptWeights lay_out_weights(const GptConfig& config, const Encoding& encoding,
                           const std::function<Tensor(const ParameterSpec&)>& place);

}  // namespace carope
