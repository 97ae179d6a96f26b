#pragma once

#include <span>
#include <vector>

#include "core/arena.h"
#include "core/context.h"
#include "core/parameter.h"
#include "dist/communicator.h"
#include "ops/adamw.h"

namespace carope {

struct OptimizerConfig {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double decay = 0.1;  // on the parameters that take decay
  double clip = 1.0;   // largest global norm of the gradient; 0 for no limit
};

/// AdamW over a model's trainable parameters, or a rank's parts of them, with decoupled decay and
/// clipping by the norm of all.
class Optimizer {
 public:
  Optimizer(std::span<const Parameter> parameters, const OptimizerConfig& config);
  /// The same for a rank, whose parts may be none where there are many for a small model.
  Optimizer(std::span<const Parameter> parts, const OptimizerConfig& config, Device device);

  /// Updates every parameter from its gradient and returns the gradient's global norm before
  /// clipping. A norm that is not finite changes nothing: the caller must stop or skip. Where other
  /// ranks have other parts, all step together.
  double step(Context& ctx, double learning_rate, Communicator* ranks = nullptr);

  /// The two halves of step(), for what is to be issued in between: the update, which waits for
  /// nothing, and the norm, which waits for it. Every update must be finished.
  void update(Context& ctx, double learning_rate, Communicator* ranks = nullptr);
  double finish();

  std::int64_t steps() const { return steps_; }
  /// What the moments take.
  std::size_t bytes() const { return arena_.bytes(); }

  // What a checkpoint keeps, in the order of the parameters.
  std::vector<Tensor> first_moments() const;
  std::vector<Tensor> second_moments() const;
  void set_steps(std::int64_t steps) { steps_ = steps; }

 private:
  OptimizerConfig config_;
  std::vector<AdamwSlot> slots_;
  Tensor squares_;  // [1] f64: of the gradient's norm
  Arena arena_;
  std::int64_t steps_ = 0;
};

}  // namespace carope
