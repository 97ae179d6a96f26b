#pragma once

#include <string>
#include <vector>

#include "support/complex_step.h"
#include "support/op_run.h"

namespace carope::test {

/// How far one tensor of a run is from what it should be.
struct Deviation {
  std::string name;
  double error;
  double tolerance;
};

std::vector<Deviation> output_deviations(const OpRun& run, const Expected& expected);
/// Of the inputs that are differentiable.
std::vector<Deviation> gradient_deviations(const OpRun& run, const Expected& expected);

/// The case's results by the CPU engine, in fp32 from what the inputs are in a model with
/// activations of this type: for shapes that are too large for the reference.
Expected computed_on_cpu(const OpCase& op, DType activation);

}  // namespace carope::test
