#include "train/comparison.h"

#include <chrono>
#include <cmath>
#include <numbers>
#include <optional>

#include "eval/evaluate.h"
#include "model/gpt.h"
#include "train/optimizer.h"

namespace carope {
namespace {

Batch view(RecallBatch& batch) {
  const Tensor tokens = batch.tokens();
  return {.seq = {.batch = tokens.dim(0), .length = tokens.dim(1)},
          .tokens = tokens,
          .targets = batch.targets()};
}

/// A linear rise over the first tenth of the steps, then half a cosine down to a tenth of the peak.
double learning_rate(const ComparisonConfig& config, std::int64_t step) {
  const double progress = static_cast<double>(step) / static_cast<double>(config.steps);
  constexpr double kWarmup = 0.1;
  constexpr double kFloor = 0.1;
  if (progress < kWarmup) {
    return config.learning_rate * progress / kWarmup;
  }
  const double cosine = std::cos(std::numbers::pi * (progress - kWarmup) / (1.0 - kWarmup));
  return config.learning_rate * (kFloor + (1.0 - kFloor) * 0.5 * (1.0 + cosine));
}

double score(Context& ctx, const ComparisonConfig& config, const Gpt& model, std::int64_t length) {
  constexpr std::int64_t kBatches = 4;
  constexpr std::uint64_t kUnseen = std::uint64_t{1} << 32;  // steps that training does not reach
  std::optional<RecallBatch> data;
  return evaluate(ctx, model, config.batch, length, kBatches, [&](std::int64_t i) {
    data.emplace(config.task, config.batch, length, kUnseen + static_cast<std::uint64_t>(i));
    return view(*data);
  });
}

}  // namespace

ComparisonResult train_and_score(Context& ctx, const ComparisonConfig& config,
                                 const std::string& encoding, const StepObserver& observe) {
  GptConfig model_config = config.model;
  model_config.encoding = encoding;
  Gpt model(model_config);
  model.initialise(config.task.seed);
  Optimizer optimizer(model.parameters(), {});
  Activations a = model.plan(config.batch, model_config.length, Purpose::kTraining);

  const auto begin = std::chrono::steady_clock::now();
  for (std::int64_t step = 1; step <= config.steps; ++step) {
    RecallBatch data(config.task, config.batch, model_config.length,
                     static_cast<std::uint64_t>(step));
    const double loss = model.loss_and_gradients(ctx, view(data), a, Write::kOverwrite);
    optimizer.step(ctx, learning_rate(config, step));
    observe(step, loss);
  }
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;

  ComparisonResult result{.encoding = encoding, .losses = {}};
  const auto tokens = static_cast<double>(config.steps * config.batch * model_config.length);
  result.tokens_per_second = tokens / elapsed.count();
  const auto bound = model.encoding().max_length();
  for (const std::int64_t length : config.lengths) {
    result.losses.push_back(
        bound && length > *bound ? std::nullopt : std::optional(score(ctx, config, model, length)));
  }
  return result;
}

}  // namespace carope
