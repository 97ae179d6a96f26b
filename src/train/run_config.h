#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/settings.h"
#include "data/loader/loader.h"
#include "model/config.h"
#include "train/optimizer.h"

namespace carope {

/// What to train on: [data].
struct DataConfig {
  std::string path;  // a folder of shards
  Order order = Order::kShuffled;
  bool documents = false;  // attention and phases stay within documents
};

/// How to train: [train].
struct TrainConfig {
  std::int64_t tokens = 10'000'000;     // in all
  std::int64_t batch_tokens = 524'288;  // a step
  std::int64_t micro_batch = 8;         // rows of a rank at a time; gradients add up to a step
  double learning_rate = 6e-4;          // the highest
  double final_learning_rate = 6e-5;    // at the end of the cosine
  std::int64_t warmup_steps = 100;
  std::uint64_t seed = 1;
  std::int64_t validate_every = 250;  // steps; 0: only at the end
  std::int64_t validate_tokens = 1'000'000;
  std::int64_t checkpoint_every = 250;  // steps; 0: only at the end
  std::int64_t keep = 2;                // checkpoints
};

/// Everything that decides a training run.
struct RunConfig {
  GptConfig model;
  DataConfig data;
  TrainConfig train;
  OptimizerConfig optimizer;
  Settings resolved;  // all of the above as settings, defaults filled in

  std::int64_t rows_a_step() const { return train.batch_tokens / model.length; }
  /// Of all ranks together.
  std::int64_t micro_steps() const { return rows_a_step() / train.micro_batch; }
  std::int64_t steps() const;
};

/// The sections of a run's configuration.
const std::vector<std::string>& run_sections();

/// The settings of a preset.
Settings preset_settings(const std::string& name);

/// The settings of a TOML file, or of the preset of this name where there is no such file.
Settings load_run_settings(const std::string& file_or_preset);

/// Reads and checks a run's settings; throws a ConfigError that names the setting and what would be
/// valid.
RunConfig read_run(Settings settings);

/// Throws, with what would fit, unless a step's micro-batches can be dealt evenly to so many ranks.
void require_even_share(const RunConfig& config, int ranks);

/// The learning rate of a step, from 0: linear up to the highest, then a cosine down to the final.
double learning_rate_at(const TrainConfig& config, std::int64_t step, std::int64_t steps);

}  // namespace carope
