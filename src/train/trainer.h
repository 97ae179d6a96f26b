#pragma once

#include <atomic>
#include <filesystem>
#include <functional>

#include "core/context.h"
#include "core/file.h"
#include "data/loader/loader.h"
#include "model/gpt.h"
#include "train/checkpoint.h"
#include "train/metrics.h"
#include "train/optimizer.h"
#include "train/run_config.h"

namespace carope {

/// A run that cannot go on: the loss is not a number or far above that of guessing.
class TrainingError : public Error {
 public:
  using Error::Error;
};

/// Hears of what happens in a run.
struct TrainObserver {
  std::function<void(const StepMetrics&)> step = [](const StepMetrics&) {};
  std::function<void(const ValidationMetrics&)> validation = [](const ValidationMetrics&) {};
  std::function<void(const std::filesystem::path&)> checkpoint = [](const auto&) {};
};

/// Trains one model into a folder. A step is a function of the configuration and the step before,
/// so a run that is resumed goes on as if it had never stopped.
class Trainer {
 public:
  /// Begins a run, or goes on from the folder's newest checkpoint if `resume`.
  Trainer(Context& ctx, const RunConfig& config, std::filesystem::path folder, bool resume);

  /// Trains to the end, or until `stop` becomes true; saves a checkpoint in both cases. Returns
  /// whether the end was reached.
  bool run(const TrainObserver& observer, const std::atomic<bool>& stop);

  const Gpt& model() const { return model_; }
  const RunConfig& config() const { return config_; }
  const RunState& state() const { return state_; }
  std::int64_t steps() const { return config_.steps(); }

 private:
  StepMetrics step();
  double validate();
  void save(const TrainObserver& observer);
  void check_health(const StepMetrics& metrics, const TrainObserver& observer);

  Context& ctx_;
  RunConfig config_;
  std::filesystem::path folder_;
  FolderLock lock_;
  Gpt model_;
  Optimizer optimizer_;
  Activations activations_;
  DeviceBatch device_batch_;
  RunState state_;
  std::int64_t saved_step_ = -1;
  std::unique_ptr<Loader> loader_;
  std::unique_ptr<Loader> validation_;
  std::unique_ptr<MetricsLog> log_;
};

}  // namespace carope
