#include "position/rotary_options.h"

namespace carope::encodings {

/// Context-aware rotary position embedding: each layer has a gate, one logit a token and key head,
/// that sets how far the head's clock turns at that token.
Encoding carope(const ModelShape& shape, OptionReader& options) {
  check_rotary(shape);
  options.ignore("chunk");  // older configurations have it; no result depends on it
  const RotaryLayout layout = rotary_layout(options);
  const std::int64_t exponent_start = options.integer("exponent_start", 0, 0, 64);
  const auto input = options.choice<GateInput>(
      "source", GateInput::kHidden,
      {{"hidden", GateInput::kHidden}, {"embedding", GateInput::kEmbedding}});
  const bool has_bias = options.flag("bias", true);
  const bool frozen = options.flag("frozen", false);
  const bool decay = options.flag("decay", true);
  const double base = rotary_base(options);
  const double weight_deviation = options.number("weight_deviation", 0.0, 0.0);
  const double bias_deviation = options.number("bias_deviation", 0.0, 0.0);
  check<ConfigError>(has_bias || bias_deviation == 0.0,
                     "{} is {}, but there is no bias: {} is false; leave one of them out",
                     options.name("bias_deviation"), bias_deviation, options.name("bias"));
  GateSpec gate{.input = input,
                .weight = {.name = "weight",
                           .shape = {shape.key_heads, shape.width},
                           .init = {.deviation = weight_deviation},
                           .decay = decay,
                           .trainable = !frozen}};
  if (has_bias) {
    // With W = 0 this mean makes the encoding equal RoPE: training starts from there.
    gate.bias = {
        .name = "bias",
        .shape = {shape.key_heads},
        .init = {.mean = rope_gate_bias(shape.pairs(), base), .deviation = bias_deviation}};
  }
  return {.rotation = RotationSpec{
              .turns = PowerTurns{.gate = std::move(gate), .exponent_start = exponent_start},
              .pairs = shape.pairs(),
              .layout = layout}};
}

}  // namespace carope::encodings
