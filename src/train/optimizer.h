#pragma once

#include <span>
#include <vector>

#include "core/arena.h"
#include "core/context.h"
#include "core/parameter.h"
#include "core/safetensors.h"
#include "ops/adamw.h"

namespace carope {

struct OptimizerConfig {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double decay = 0.1;  // on the parameters that take decay
  double clip = 1.0;   // largest global norm of the gradient; 0 for no limit
};

/// AdamW over a model's trainable parameters, with decoupled decay and clipping by global norm.
class Optimizer {
 public:
  Optimizer(std::span<const Parameter> parameters, const OptimizerConfig& config);

  /// Updates every parameter from its gradient and returns the gradient's global norm before
  /// clipping. A norm that is not finite changes nothing: the caller must stop or skip.
  double step(Context& ctx, double learning_rate);

  std::int64_t steps() const { return steps_; }
  /// What the moments take.
  std::size_t bytes() const { return arena_.bytes(); }

  // What a checkpoint keeps.
  std::vector<NamedTensor> moments() const;
  void set_steps(std::int64_t steps) { steps_ = steps; }

 private:
  OptimizerConfig config_;
  std::vector<AdamwSlot> slots_;
  std::vector<std::string> names_;  // of the slots' parameters
  Tensor norm_;                     // [1] f64
  Arena arena_;
  std::int64_t steps_ = 0;
};

}  // namespace carope
