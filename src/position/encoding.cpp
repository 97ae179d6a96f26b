#include "position/encoding.h"

namespace carope {

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
