#pragma once

#include <functional>
#include <vector>

#include "core/parameter.h"
#include "model/config.h"
#include "ops/norm.h"
#include "position/encoding.h"

namespace carope {

struct LinearWeights {
  Tensor weight;  // [out, in]
  Tensor bias;    // [out]
};

struct BlockWeights {
  NormWeights attention_norm;
  LinearWeights qkv;            // [3C, C]
  LinearWeights attention_out;  // [C, C]
  NormWeights mlp_norm;
  LinearWeights mlp_in;          // [4C, C]
  LinearWeights mlp_out;         // [C, 4C]
  std::vector<Tensor> position;  // the encoding's layer_parameters()
};

/// Every parameter of a GPT by its role; or, in the same shape, every gradient.
struct GptWeights {
  Tensor embedding;              // [V, C], also the classifier
  std::vector<Tensor> position;  // the encoding's parameters()
  std::vector<BlockWeights> blocks;
  NormWeights final_norm;
};

/// Lists the parameters of a GPT in order, asking `place` for the tensor of each.
GptWeights lay_out_weights(const GptConfig& config, const PositionEncoding& encoding,
                           const std::function<Tensor(const ParameterSpec&)>& place);

}  // namespace carope
