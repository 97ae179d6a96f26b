#include "support/op_check.h"

#include <algorithm>
#include <numeric>

#include "support/compare.h"

namespace carope::test {
namespace {

/// What a result of this type may deviate by, where it does or does not depend on activations
/// between the inputs and it.
Tolerance tolerance_of(const OpRun& run, DType type, bool follows_rounding) {
  if (run.activation() == DType::kF32) {
    return tolerance(DType::kF32);
  }
  if (type == DType::kF32 && !follows_rounding) {
    return unrounded_tolerance();
  }
  Tolerance rounded = tolerance(run.activation());
  rounded.forward *= run.op().condition;
  rounded.gradient *= run.op().condition;
  return rounded;
}

std::vector<float> gradient_before_backward(const OpRun& run, std::size_t input) {
  const Input& in = run.op().inputs[input];
  const bool accumulates = in.write == Write::kAccumulate && !in.gradient_starts_as;
  return accumulates ? gradient_before(run.op(), input, run.activation())
                     : std::vector<float>(static_cast<std::size_t>(in.shape.size()));
}

double element_error(const ExpectedGradient& expected, const std::vector<float>& gradient,
                     const std::vector<float>& before) {
  std::vector<float> found;
  std::vector<double> wanted;
  for (std::size_t i = 0; i < expected.elements.size(); ++i) {
    const std::size_t element = expected.elements[i];
    found.push_back(gradient[element]);
    wanted.push_back(expected.values[i] + static_cast<double>(before[element]));
  }
  return relative_error(std::span<const float>(found), std::span<const double>(wanted));
}

double signed_sum_error(const ExpectedGradient& expected, const std::vector<float>& gradient,
                        const std::vector<float>& before) {
  double found = 0.0;
  double wanted = expected.signed_sum;
  double norm = 0.0;
  for (std::size_t i = 0; i < expected.signs.size(); ++i) {
    found += expected.signs[i] * static_cast<double>(gradient[i]);
    wanted += expected.signs[i] * static_cast<double>(before[i]);
    norm += static_cast<double>(gradient[i]) * static_cast<double>(gradient[i]);
  }
  return std::abs(found - wanted) / (norm > 0.0 ? std::sqrt(norm) : 1.0);
}

}  // namespace

std::vector<Deviation> output_deviations(const OpRun& run, const Expected& expected) {
  std::vector<Deviation> deviations;
  const auto outputs = run.outputs();
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const Output& out = run.op().outputs[i];
    const DType type = value_type(out.precision, run.activation());
    deviations.push_back(
        {out.name,
         relative_error(std::span<const float>(outputs[i]), std::span(expected.outputs[i])),
         tolerance_of(run, type, out.follows_rounding).forward});
  }
  return deviations;
}

std::vector<Deviation> gradient_deviations(const OpRun& run, const Expected& expected) {
  std::vector<Deviation> deviations;
  const auto gradients = run.gradients();
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const Input& in = run.op().inputs[i];
    if (!in.differentiable) {
      continue;
    }
    const DType type = gradient_type(in.precision, run.activation());
    const double limit = tolerance_of(run, type, in.gradient_follows_rounding).gradient;
    const std::vector<float> before = gradient_before_backward(run, i);
    deviations.push_back({"gradient of " + in.name,
                          element_error(expected.gradients[i], gradients[i], before), limit});
    deviations.push_back({"gradient of " + in.name + ", all elements with random signs",
                          signed_sum_error(expected.gradients[i], gradients[i], before), limit});
  }
  return deviations;
}

Expected computed_on_cpu(const OpCase& op, DType activation) {
  Context ctx = Context::cpu();
  OpRun run(op, ctx, activation);
  run.forward();
  Expected expected;
  for (const auto& output : run.outputs()) {
    expected.outputs.emplace_back(output.begin(), output.end());
  }
  expected.gradients.resize(op.inputs.size());
  if (!op.backward) {
    return expected;
  }
  run.backward();
  const auto gradients = run.gradients();
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (!op.inputs[i].differentiable) {
      continue;
    }
    const std::vector<float> before = gradient_before_backward(run, i);
    ExpectedGradient& gradient = expected.gradients[i];
    gradient.elements.resize(gradients[i].size());
    std::iota(gradient.elements.begin(), gradient.elements.end(), std::size_t{0});
    for (std::size_t j = 0; j < before.size(); ++j) {
      gradient.values.push_back(static_cast<double>(gradients[i][j]) -
                                static_cast<double>(before[j]));
    }
  }
  return expected;
}

}  // namespace carope::test
