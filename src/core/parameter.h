#pragma once

#include "core/parameter_spec.h"
#include "core/tensor.h"

namespace carope {

/// A parameter with its memory, or a part of one, whose shape is then that of the part;
/// `gradient` is empty where the parameter is frozen.
struct Parameter {
  ParameterSpec spec;
  Tensor value;      // f32; empty where no process has it whole
  Tensor gradient;   // f32
  Tensor rounded{};  // what the model computes with where that is not `value`: a bf16 copy of it
  std::int64_t begin = 0;  // the parameter's element that a part begins with
};

}  // namespace carope
