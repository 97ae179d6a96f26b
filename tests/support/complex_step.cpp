#include "support/complex_step.h"

#include <algorithm>
#include <numeric>

#include "support/op_run.h"

namespace carope::test {
namespace {

using reference::Complex;
using reference::Values;

constexpr double kStep = 1e-40;         // its square is far below rounding, and above underflow
constexpr std::size_t kAllUpTo = 1024;  // elements; of a larger input, a subset is checked
constexpr std::size_t kSubset = 48;

/// A subset of [0, count) that depends on the stream's name alone, in order.
std::vector<std::size_t> choose(const std::string& stream, std::size_t count) {
  std::vector<std::size_t> elements(count);
  std::iota(elements.begin(), elements.end(), std::size_t{0});
  if (count > kAllUpTo) {
    for (std::size_t i = 0; i < kSubset; ++i) {
      const double fraction = 0.5 * (uniform(stream, i) + 1.0);
      const auto offset = static_cast<std::size_t>(fraction * static_cast<double>(count - i));
      std::swap(elements[i], elements[i + offset]);
    }
    elements.resize(kSubset);
    std::sort(elements.begin(), elements.end());
  }
  return elements;
}

std::vector<double> real_parts(const Values& values) {
  std::vector<double> parts;
  for (const Complex& value : values) {
    parts.push_back(value.real());
  }
  return parts;
}

/// The number whose gradient is checked: every output times the gradient it hands back.
Complex weighted_sum(const std::vector<Values>& outputs,
                     const std::vector<std::vector<float>>& weights) {
  Complex sum = 0.0;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    for (std::size_t j = 0; j < weights[i].size(); ++j) {
      sum += outputs[i][j] * static_cast<double>(weights[i][j]);
    }
  }
  return sum;
}

}  // namespace

std::vector<double> complex_step(const std::vector<Values>& values, std::size_t tensor,
                                 const std::vector<std::size_t>& elements,
                                 const std::function<Complex(const std::vector<Values>&)>& loss) {
  std::vector<double> derivatives(elements.size());
#pragma omp parallel
  {
    std::vector<Values> mine = values;
#pragma omp for schedule(dynamic, 1)
    for (std::size_t i = 0; i < elements.size(); ++i) {
      Complex& variable = mine[tensor][elements[i]];
      variable += Complex(0.0, kStep);
      derivatives[i] = loss(mine).imag() / kStep;
      variable = variable.real();
    }
  }
  return derivatives;
}

Expected expected_of(const OpCase& op, DType activation) {
  std::vector<Values> inputs;
  for (std::size_t i = 0; i < op.inputs.size(); ++i) {
    const auto values = input_values(op, i, activation);
    inputs.emplace_back(values.begin(), values.end());
  }
  Expected expected;
  for (const Values& output : op.reference(inputs)) {
    expected.outputs.push_back(real_parts(output));
  }
  expected.gradients.resize(op.inputs.size());
  if (!op.backward) {
    return expected;
  }

  std::vector<std::vector<float>> weights;
  for (std::size_t i = 0; i < op.outputs.size(); ++i) {
    weights.push_back(op.outputs[i].differentiable ? output_gradient(op, i, activation)
                                                   : std::vector<float>{});
  }
  const auto loss = [&](const std::vector<Values>& at) {
    return weighted_sum(op.reference(at), weights);
  };
  for (std::size_t i = 0; i < op.inputs.size(); ++i) {
    if (!op.inputs[i].differentiable) {
      continue;
    }
    const std::string stream = op.name() + "/" + op.inputs[i].name;
    ExpectedGradient& gradient = expected.gradients[i];
    gradient.elements = choose(stream + "/subset", inputs[i].size());
    gradient.values = complex_step(inputs, i, gradient.elements, loss);
    std::vector<Values> shifted = inputs;
    for (std::size_t j = 0; j < inputs[i].size(); ++j) {
      gradient.signs.push_back(uniform(stream + "/signs", j) < 0.0 ? -1.0 : 1.0);
      shifted[i][j] += Complex(0.0, kStep * gradient.signs[j]);
    }
    gradient.signed_sum = loss(shifted).imag() / kStep;
  }
  return expected;
}

}  // namespace carope::test
