#include "model/weights.h"

#include <cmath>

namespace carope {

GptWeights lay_out_weights(const GptConfig& config, const Encoding& encoding,
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
  const auto position = [&](const std::string& prefix, ParameterSpec spec) {
    spec.name = prefix + "position." + spec.name;
    return take(spec);
  };

  GptWeights weights;
  weights.embedding = take({.name = "embedding",
                            .shape = {config.vocabulary, width},
                            .init = {.deviation = kDeviation},
                            .decay = true,
                            .rounds = true});
  for (const ParameterSpec& spec : model_parameters(encoding)) {
    weights.positions = position("", spec);
  }
  const std::int64_t attended = config.heads * config.head_dim();
  const std::int64_t qkv = attended + 2 * config.key_heads() * config.head_dim();
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    const std::string block = fmt::format("block.{}.", layer);
    block_number = layer;
    BlockWeights w;
    w.attention.norm = norm(block + "attention_norm");
    w.attention.qkv = linear(block + "qkv", qkv, width, kDeviation);
    w.attention.out = linear(block + "attention_out", width, attended, branch_deviation);
    w.mlp.norm = norm(block + "mlp_norm");
    w.mlp.in = linear(block + "mlp_in", config.mlp_width(), width, kDeviation);
    w.mlp.out = linear(block + "mlp_out", width, config.mlp_width(), branch_deviation);
    if (const GateSpec* gate = gate_of(encoding)) {
      w.attention.gate.weight = position(block, gate->weight);
      w.attention.gate.bias = gate->bias ? position(block, *gate->bias) : Tensor{};
    }
    weights.blocks.push_back(w);
  }
  block_number = -1;
  weights.final_norm = norm("final_norm");
  return weights;
}

}  // namespace carope
