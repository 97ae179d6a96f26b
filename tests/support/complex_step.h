#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "support/op_case.h"

namespace carope::test {

/// What the gradient of an input should be. Large inputs are checked at a fixed random subset of
/// their elements, and all elements together by the sum of their gradients with random signs, which
/// an error anywhere disturbs.
struct ExpectedGradient {
  std::vector<std::size_t> elements;  // which are checked one by one
  std::vector<double> values;         // of those
  std::vector<double> signs;          // +1 or -1 for every element; empty where all are checked
  double signed_sum = 0.0;
};

struct Expected {
  std::vector<std::vector<double>> outputs;
  std::vector<ExpectedGradient> gradients;  // empty for what is not differentiable
};

/// The case's results by its reference, from what the inputs are in a model with activations of
/// this type. Derivatives are taken by complex steps: the imaginary part of f(x + ih) / h, which is
/// exact to rounding, as nothing is subtracted.
Expected expected_of(const OpCase& op, DType activation = DType::kF32);

/// The derivative of `loss` by each of these elements of values[tensor], by complex steps.
std::vector<double> complex_step(
    const std::vector<reference::Values>& values, std::size_t tensor,
    const std::vector<std::size_t>& elements,
    const std::function<reference::Complex(const std::vector<reference::Values>&)>& loss);

}  // namespace carope::test
