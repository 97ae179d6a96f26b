#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include "train/tensorboard.h"

namespace carope {

/// What one step of training did.
struct StepMetrics {
  std::int64_t step = 0;  // from 1
  std::int64_t tokens = 0;
  double loss = 0.0;  // mean, in nats
  double norm = 0.0;  // of the gradient before clipping
  double learning_rate = 0.0;
  double seconds = 0.0;            // of training so far
  double tokens_per_second = 0.0;  // of this step
};

/// What the model's loss on the validation split is after a step.
struct ValidationMetrics {
  std::int64_t step = 0;
  std::int64_t tokens = 0;
  double loss = 0.0;
};

/// RUN/metrics.jsonl, one line for each step and each validation, written as it happens, and the
/// same numbers for TensorBoard in RUN/tensorboard.
class MetricsLog {
 public:
  /// Goes on behind step `steps_done`: what an interrupted run wrote of later steps is removed.
  MetricsLog(const std::filesystem::path& run, std::int64_t steps_done);

  void add(const StepMetrics& metrics);
  void add(const ValidationMetrics& metrics);

 private:
  void write(const std::string& line);

  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::filesystem::path path_;
  std::unique_ptr<std::FILE, Close> file_;
  TensorBoardLog tensorboard_;
};

}  // namespace carope
