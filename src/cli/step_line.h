#pragma once

#include <cstdint>
#include <string>

#include "train/trainer.h"

namespace carope {

/// Shows on standard error how a run goes: a line that rewrites itself on a terminal, whole lines
/// in a log.
class StepLine {
 public:
  /// `name` stands before each line; a log gets every `log_every`-th step.
  StepLine(const Trainer& trainer, Context& ctx, std::string name = "", std::int64_t log_every = 1);
  ~StepLine();
  StepLine(const StepLine&) = delete;
  StepLine& operator=(const StepLine&) = delete;

  /// Tells the trainer to report here. Valid as long as this object.
  TrainObserver observer();
  void say(const std::string& text);

 private:
  void step(const StepMetrics& metrics);

  const std::string name_;
  const std::int64_t steps_, log_every_;
  const double flops_per_token_;
  const double peak_;  // operations a second
  const bool terminal_;
  bool open_ = false;  // the cursor stands behind a line that rewrites itself
};

}  // namespace carope
