#include "model/weights.h"

#include <cmath>

namespace carope {

GptWeights lay_out_weights(const GptConfig& config, const PositionEncoding& encoding,
                           const std::function<Tensor(const ParameterSpec&)>& place) {
  constexpr double kDeviation = 0.02;
  // Each layer adds two branches to the residual; this keeps their sum's variance at that of one.
  const double branch_deviation = kDeviation / std::sqrt(2.0 * static_cast<double>(config.layers));
  const std::int64_t width = config.width;
  std::int64_t block_number = -1;
  const auto take = [&](ParameterSpec spec) {
    spec.block = block_number;
    return place(spec);
  };

  const auto norm = [&](const std::string& name) {
    return NormWeights{
        .gain = take({.name = name + ".gain", .shape = {width}, .init = {.mean = 1.0}}),
        .bias = take({.name = name + ".bias", .shape = {width}, .init = {}})};
  };
  const auto linear = [&](const std::string& name, std::int64_t out, std::int64_t in,
                          double deviation) {
    return LinearWeights{
        .weight = take({.name = name + ".weight",
                        .shape = {out, in},
                        .init = {.deviation = deviation},
                        .decay = true,
                        .rounds = true}),
        .bias = take({.name = name + ".bias", .shape = {out}, .init = {}, .rounds = true})};
  };
  const auto position = [&](const std::string& prefix, std::vector<ParameterSpec> specs) {
    std::vector<Tensor> tensors;
    for (ParameterSpec& spec : specs) {
      spec.name = prefix + spec.name;
      tensors.push_back(take(spec));
    }
    return tensors;
  };

  GptWeights weights;
  weights.embedding = take({.name = "embedding",
                            .shape = {config.vocabulary, width},
                            .init = {.deviation = kDeviation},
                            .decay = true,
                            .rounds = true});
  weights.position = position("position.", encoding.parameters());
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    const std::string block = fmt::format("block.{}.", layer);
    block_number = layer;
    weights.blocks.push_back(
        {.attention_norm = norm(block + "attention_norm"),
         .qkv = linear(block + "qkv", 3 * width, width, kDeviation),
         .attention_out = linear(block + "attention_out", width, width, branch_deviation),
         .mlp_norm = norm(block + "mlp_norm"),
         .mlp_in = linear(block + "mlp_in", 4 * width, width, kDeviation),
         .mlp_out = linear(block + "mlp_out", width, 4 * width, branch_deviation),
         .position = position(block + "position.", encoding.layer_parameters())});
  }
  block_number = -1;
  weights.final_norm = norm("final_norm");
  return weights;
}

}  // namespace carope
