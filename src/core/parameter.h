#pragma once

#include <string>

#include "core/tensor.h"

namespace carope {

/// A parameter's values before training: `mean` + `deviation` times a standard normal number.
struct Init {
  double mean = 0.0;
  double deviation = 0.0;
};

/// What a parameter is, without its memory.
struct ParameterSpec {
  std::string name;
  Shape shape;
  Init init;
  bool decay = false;     // whether weight decay applies
  bool trainable = true;  // a frozen parameter has no gradient
  bool rounds = false;    // whether a bf16 model computes with a bf16 copy of it
};

/// A parameter with its memory; `gradient` is empty where the parameter is frozen.
struct Parameter {
  ParameterSpec spec;
  Tensor value;      // f32
  Tensor gradient;   // f32
  Tensor rounded{};  // what the model computes with where that is not `value`: a bf16 copy of it
};

}  // namespace carope
