#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <optional>

#include "core/context.h"
#include "core/file.h"
#include "data/loader/loader.h"
#include "dist/communicator.h"
#include "model/gpt.h"
#include "train/checkpoint.h"
#include "train/gradient_exchange.h"
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

/// How to train, besides what decides the result.
struct TrainerOptions {
  bool resume = false;  // goes on from the folder's newest checkpoint
  Sums sums = Sums::kFast;
  std::size_t bucket_bytes = 0;  // as Sharding has it
};

/// Trains one model into a folder. A step is a function of the configuration and the step before,
/// so a run that is resumed goes on as if it had never stopped. Ranks that train together each have
/// a Trainer; only the first one's writes the folder and tells its observer.
class Trainer {
 public:
  Trainer(Context& ctx, Communicator& ranks, const RunConfig& config, std::filesystem::path folder,
          const TrainerOptions& options = {});

  /// Trains to the end, or until `stop` becomes true on any rank; saves a checkpoint in both cases.
  /// Returns whether the end was reached.
  bool run(const TrainObserver& observer, const std::atomic<bool>& stop);

  const Gpt& model() const { return model_; }
  const RunConfig& config() const { return config_; }
  const RunState& state() const { return state_; }
  std::int64_t steps() const { return config_.steps(); }
  int ranks() const { return ranks_.size(); }

 private:
  bool first() const { return ranks_.rank() == 0; }
  Trained trained() { return {ctx_, ranks_, model_, optimizer_, exchange_}; }
  void begin();
  StepMetrics step();
  /// The gradients of a step, summed over ranks. Returns the loss read so far; the rest is in
  /// total_loss.
  double gradients(const Batch& batch);
  double read_loss();
  double validate();
  void save(const TrainObserver& observer);
  /// Where data cannot be read: what was learned until then is kept. Other ranks know of nothing,
  /// so several save nothing.
  void save_if_possible(const TrainObserver& observer);
  void check_health(const StepMetrics& metrics, const TrainObserver& observer);
  void check_health(const ValidationMetrics& metrics, const TrainObserver& observer);
  /// Keeps the state of a run that went wrong, and throws what is the matter with it.
  [[noreturn]] void fail(const std::string& what, const TrainObserver& observer);

  Context& ctx_;
  Communicator& ranks_;
  RunConfig config_;
  std::filesystem::path folder_;
  std::optional<FolderLock> lock_;  // of the first rank, as the log is
  Gpt model_;
  Optimizer optimizer_;
  GradientExchange exchange_;
  Activations activations_;
  DeviceBatch device_batch_;
  RunState state_;
  std::int64_t saved_step_ = -1;
  std::unique_ptr<Loader> loader_;
  std::unique_ptr<Loader> validation_;
  std::unique_ptr<MetricsLog> log_;
};

}  // namespace carope
