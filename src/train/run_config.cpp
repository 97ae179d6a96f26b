#include "train/run_config.h"

#include <fmt/ranges.h>

#include <cmath>
#include <filesystem>
#include <numbers>
#include <ranges>

#include "core/error.h"
#include "train/presets.h"

namespace carope {

std::int64_t RunConfig::steps() const {
  return (train.tokens + train.batch_tokens - 1) / train.batch_tokens;
}

const std::vector<std::string>& run_sections() {
  static const std::vector<std::string> kSections{"model", "position", "data", "train",
                                                  "optimizer"};
  return kSections;
}

Settings preset_settings(const std::string& name) {
  return parse_settings(presets().at(name), name, run_sections());
}

Settings load_run_settings(const std::string& file_or_preset) {
  const bool preset =
      presets().contains(file_or_preset) && !std::filesystem::is_regular_file(file_or_preset);
  check<ConfigError>(preset || std::filesystem::exists(file_or_preset),
                     "--config {}: there is no such file, and no configuration of that name; there "
                     "are {}",
                     file_or_preset, fmt::join(std::views::keys(presets()), ", "));
  return preset ? preset_settings(file_or_preset) : load_settings(file_or_preset, run_sections());
}

RunConfig read_run(Settings settings) {
  constexpr std::int64_t kMostTokens = 1'000'000'000'000'000;
  RunConfig run;
  run.model = read_model(settings);

  OptionReader data("data", settings["data"]);
  run.data.path = data.text("path", run.data.path);
  run.data.order =
      data.choice<Order>("order", run.data.order,
                         {{"sequential", Order::kSequential}, {"shuffled", Order::kShuffled}});
  run.data.documents = data.flag("documents", run.data.documents);
  settings["data"] = data.finish();

  OptionReader train("train", settings["train"]);
  TrainConfig& t = run.train;
  t.tokens = train.integer("tokens", t.tokens, 1, kMostTokens);
  t.batch_tokens = train.integer("batch_tokens", t.batch_tokens, 1);
  t.micro_batch = train.integer("micro_batch", t.micro_batch, 1);
  t.learning_rate = train.number("learning_rate", t.learning_rate, 0.0);
  t.final_learning_rate = train.number("final_learning_rate", t.final_learning_rate, 0.0);
  t.warmup_steps = train.integer("warmup_steps", t.warmup_steps, 0);
  t.seed = static_cast<std::uint64_t>(
      train.integer("seed", static_cast<std::int64_t>(t.seed), 0, kMostTokens));
  t.validate_every = train.integer("validate_every", t.validate_every, 0);
  t.validate_tokens = train.integer("validate_tokens", t.validate_tokens, 1, kMostTokens);
  t.checkpoint_every = train.integer("checkpoint_every", t.checkpoint_every, 0);
  t.keep = train.integer("keep", t.keep, 1);
  settings["train"] = train.finish();

  OptionReader optimizer("optimizer", settings["optimizer"]);
  OptimizerConfig& o = run.optimizer;
  o.beta1 = optimizer.number("beta1", o.beta1, 0.0);
  o.beta2 = optimizer.number("beta2", o.beta2, 0.0);
  o.epsilon = optimizer.number("epsilon", o.epsilon, 0.0);
  o.decay = optimizer.number("decay", o.decay, 0.0);
  o.clip = optimizer.number("clip", o.clip, 0.0);
  settings["optimizer"] = optimizer.finish();
  check<ConfigError>(o.beta1 < 1.0 && o.beta2 < 1.0,
                     "optimizer.beta1 = {} and optimizer.beta2 = {} must be below 1", o.beta1,
                     o.beta2);

  const std::int64_t micro_tokens = t.micro_batch * run.model.length;
  const std::int64_t below = t.batch_tokens / micro_tokens * micro_tokens;
  check<ConfigError>(
      t.batch_tokens % micro_tokens == 0,
      "train.batch_tokens = {} is not a multiple of train.micro_batch x model.length "
      "= {} x {}; give {}{}",
      t.batch_tokens, t.micro_batch, run.model.length,
      below > 0 ? fmt::format("{} or ", below) : "", below + micro_tokens);
  run.resolved = std::move(settings);
  return run;
}

void require_even_share(const RunConfig& config, int ranks) {
  const std::int64_t micro_steps = config.micro_steps();
  if (micro_steps % ranks == 0) {
    return;
  }
  std::int64_t fewer = std::min<std::int64_t>(ranks, micro_steps);
  while (micro_steps % fewer != 0) {
    --fewer;
  }
  const std::int64_t rows = config.rows_a_step();
  std::int64_t smaller = rows % ranks == 0 ? config.train.micro_batch : 0;
  while (smaller > 0 && rows % (ranks * smaller) != 0) {
    --smaller;
  }
  throw ConfigError(fmt::format(
      "a step of train.batch_tokens = {} is {} micro-batches of train.micro_batch = {} rows, which "
      "{} ranks cannot share evenly; start {} of them{}",
      config.train.batch_tokens, micro_steps, config.train.micro_batch, ranks, fewer,
      smaller > 0 ? fmt::format(", or begin with --train.micro_batch {}", smaller) : ""));
}

double learning_rate_at(const TrainConfig& config, std::int64_t step, std::int64_t steps) {
  if (step < config.warmup_steps) {
    return config.learning_rate * static_cast<double>(step + 1) /
           static_cast<double>(config.warmup_steps);
  }
  const std::int64_t falling = std::max<std::int64_t>(steps - config.warmup_steps - 1, 1);
  const double part =
      std::min(static_cast<double>(step - config.warmup_steps) / static_cast<double>(falling), 1.0);
  const double cosine = 0.5 * (1.0 + std::cos(std::numbers::pi * part));
  return config.final_learning_rate + cosine * (config.learning_rate - config.final_learning_rate);
}

}  // namespace carope
