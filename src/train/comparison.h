#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/context.h"
#include "data/recall.h"
#include "model/config.h"

namespace carope {

/// Trains the same small model with different encodings on the same recall task.
struct ComparisonConfig {
  GptConfig model{.layers = 2, .heads = 4, .width = 64, .vocabulary = 64, .length = 64};
  RecallTask task;
  std::int64_t batch = 32;
  std::int64_t steps = 1000;
  double learning_rate = 3e-3;
  std::vector<std::int64_t> lengths{64, 128, 256};  // to score at, after training at model.length
};

struct ComparisonResult {
  std::string encoding;
  /// Nats a scored token at each length; none past the encoding's bound.
  std::vector<std::optional<double>> losses;
  double tokens_per_second = 0.0;
};

/// Called after each step with the step's number, from 1, and its loss.
using StepObserver = std::function<void(std::int64_t step, double loss)>;

ComparisonResult train_and_score(Context& ctx, const ComparisonConfig& config,
                                 const std::string& encoding, const StepObserver& observe);

}  // namespace carope
