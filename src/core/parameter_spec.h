#pragma once

#include <string>

#include "core/shape.h"

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
  bool decay = false;       // whether weight decay applies
  bool trainable = true;    // a frozen parameter has no gradient
  bool rounds = false;      // whether a bf16 model computes with a bf16 copy of it
  std::int64_t block = -1;  // of the model that it is in; -1: in none
};

}  // namespace carope
