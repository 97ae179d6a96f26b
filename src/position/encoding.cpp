#include "position/encoding.h"

#include <algorithm>

namespace carope {
namespace {

void check_count(std::size_t found, std::int64_t expected, const char* what) {
  check<ConfigError>(found == static_cast<std::size_t>(expected),
                     "the encoding has {} {}, but the model needs {}", found, what, expected);
}

void check_rotation(const RotationSpec& rotation, const ModelShape& shape) {
  constexpr double kLargestRatio = 1 << 20;  // an increment must fit the fixed-point sum
  check<ConfigError>(
      1 <= rotation.pairs && rotation.pairs <= std::min(shape.pairs(), kMaxRotaryPairs),
      "the encoding rotates {} pairs of a head of {} channels; 1 to {} are possible",
      rotation.pairs, shape.head_dim, std::min(shape.pairs(), kMaxRotaryPairs));
  if (const auto* fixed = std::get_if<FixedTurns>(&rotation.turns)) {
    check_count(fixed->increments.size(), rotation.pairs, "increments");
  } else if (const auto* power = std::get_if<PowerTurns>(&rotation.turns)) {
    if (!power->ratios.empty()) {
      check_count(power->ratios.size(), rotation.pairs, "ratios");
    }
    for (const double ratio : power->ratios) {
      check<ConfigError>(0.0 <= ratio && ratio <= kLargestRatio,
                         "a ratio of {} is not possible; 0 to {} are", ratio, kLargestRatio);
    }
    const Shape weight{shape.key_heads, shape.width};
    check<ConfigError>(power->gate.weight.shape == weight,
                       "the gate's weight is {}, but the model "
                       "needs {}",
                       power->gate.weight.shape, weight);
  }
}

}  // namespace

void check_encoding(const Encoding& encoding, const ModelShape& shape) {
  if (encoding.rotation) {
    check_rotation(*encoding.rotation, shape);
  }
  if (encoding.bias) {
    check_count(encoding.bias->per_head.size(), shape.heads, "slopes");
  }
  if (!encoding.additive) {
    return;
  }
  if (const auto* sinusoids = std::get_if<Sinusoids>(&*encoding.additive)) {
    check_count(sinusoids->increments.size(), shape.width / 2, "frequencies of sines");
  } else {
    const Shape& table = std::get<LearnedPositions>(*encoding.additive).table.shape;
    check<ConfigError>(table.rank() == 2 && table[1] == shape.width,
                       "the table of positions is {}, but the model has a width of {}", table,
                       shape.width);
  }
}

const GateSpec* gate_of(const Encoding& encoding) {
  const auto* turns =
      encoding.rotation ? std::get_if<PowerTurns>(&encoding.rotation->turns) : nullptr;
  return turns == nullptr ? nullptr : &turns->gate;
}

std::vector<ParameterSpec> layer_parameters(const Encoding& encoding) {
  std::vector<ParameterSpec> specs;
  if (const GateSpec* gate = gate_of(encoding)) {
    specs.push_back(gate->weight);
    if (gate->bias) {
      specs.push_back(*gate->bias);
    }
  }
  return specs;
}

std::vector<ParameterSpec> model_parameters(const Encoding& encoding) {
  const auto* learned =
      encoding.additive ? std::get_if<LearnedPositions>(&*encoding.additive) : nullptr;
  return learned == nullptr ? std::vector<ParameterSpec>{} : std::vector{learned->table};
}

}  // namespace carope
