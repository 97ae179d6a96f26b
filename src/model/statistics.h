#pragma once

#include <string>
#include <vector>

#include "model/gpt.h"

namespace carope {

/// What a parameter's values are like.
struct ParameterStatistics {
  std::string name;
  Shape shape;
  double mean = 0.0;
  double deviation = 0.0;
  double largest = 0.0;  // by magnitude
};

/// Of every parameter, in the model's order.
std::vector<ParameterStatistics> parameter_statistics(const Gpt& model);

}  // namespace carope
