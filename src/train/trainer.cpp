#include "train/trainer.h"

#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/cuda.h"
#include "core/error.h"
#include "core/file.h"
#include "core/hash.h"
#include "core/version.h"
#include "train/run_data.h"

namespace carope {
namespace {

/// Keeps what the run was made of: its configuration, this program's version and the data's hash;
/// and what it takes: a device, and so much of its memory.
void describe_run(const RunConfig& config, const Context& ctx, std::size_t memory,
                  const std::filesystem::path& folder) {
  write_file(folder / "config.toml", to_toml(config.resolved));
  const std::filesystem::path manifest = std::filesystem::path(config.data.path) / "manifest.json";
  const nlohmann::ordered_json run{
      {"version", version()},
      {"seed", config.train.seed},
      {"data_manifest_sha256",
       std::filesystem::exists(manifest) ? sha256_of_file(manifest) : std::string()},
      {"device", ctx.device().kind == DeviceKind::kCuda
                     ? cuda::devices().at(static_cast<std::size_t>(ctx.device().index)).name
                     : fmt::format("CPU, {} threads", ctx.threads())},
      {"precision", to_string(ctx.compute())},
      {"memory_bytes", memory}};
  write_file(folder / "run.json", run.dump(2) + "\n");
}

/// Room for a micro-batch; where there is none, the error says what there is room for.
Activations plan_training(const Context& ctx, const Gpt& model, const RunConfig& config) {
  const auto plan = [&](std::int64_t rows, bool recompute) {
    return model.plan(rows, config.model.length,
                      recompute ? Purpose::kRecomputing : Purpose::kTraining);
  };
  const auto fits = [&](std::int64_t rows, bool recompute) {
    try {
      plan(rows, recompute);
      return true;
    } catch (const OutOfMemory&) {
      return false;
    }
  };
  const std::int64_t rows = config.train.micro_batch;
  try {
    return plan(rows, ctx.recompute());
  } catch (const OutOfMemory& error) {
    std::string remedy = "no smaller micro-batch fits either";
    for (std::int64_t fewer = rows; fewer >= 1; fewer /= 2) {
      if (config.rows_a_step() % fewer != 0) {
        continue;
      }
      const bool plain = fits(fewer, false);
      if (plain || fits(fewer, true)) {
        remedy = fmt::format("{}{} would fit",
                             fewer == rows ? "" : fmt::format("--train.micro_batch {}", fewer),
                             plain           ? ""
                             : fewer == rows ? "--recompute"
                                             : " --recompute");
        break;
      }
    }
    throw OutOfMemory(fmt::format("train.micro_batch = {} rows of {} tokens do not fit: {}. {}",
                                  rows, config.model.length, error.what(), remedy));
  }
}

}  // namespace

Trainer::Trainer(Context& ctx, const RunConfig& config, std::filesystem::path folder, bool resume)
    : ctx_(ctx),
      config_((require_data(config), config)),
      folder_(std::move(folder)),
      lock_((make_folder(folder_), folder_)),
      model_(config.model, ctx.device(), ctx.compute()),
      optimizer_(model_.parameters(), config.optimizer),
      activations_(plan_training(ctx, model_, config)) {
  if (resume) {
    state_ = load_checkpoint(find_checkpoint(folder_), model_, optimizer_);
    saved_step_ = state_.step;
  } else {
    check<FileError>(
        list_checkpoints(folder_).empty(),
        "{} holds a run already; give --resume to go on with it, or name another folder",
        folder_.string());
    model_.initialise(config.train.seed);
    describe_run(config_, ctx_, model_.bytes() + optimizer_.bytes() + activations_.bytes(),
                 folder_);
  }
  loader_ = open_training(config_, state_.step);
  validation_ = open_validation(config_, config_.train.micro_batch);
  log_ = std::make_unique<MetricsLog>(folder_, state_.step);
}

bool Trainer::run(const TrainObserver& observer, const std::atomic<bool>& stop) {
  const auto due = [&](std::int64_t every) { return every > 0 && state_.step % every == 0; };
  while (state_.step < steps() && !stop) {
    const StepMetrics metrics = step();
    check_health(metrics, observer);
    log_->add(metrics);
    observer.step(metrics);
    const bool last = state_.step == steps();
    if (last || due(config_.train.validate_every)) {
      const ValidationMetrics validation{state_.step, state_.tokens, validate()};
      log_->add(validation);
      observer.validation(validation);
    }
    if (last || due(config_.train.checkpoint_every)) {
      save(observer);
    }
  }
  if (saved_step_ != state_.step) {
    save(observer);
  }
  return state_.step == steps();
}

StepMetrics Trainer::step() {
  const auto start = std::chrono::steady_clock::now();
  const Batch loaded = batch_of(loader_->next());
  const Batch batch = device_batch_.upload(ctx_, loaded, config_.model.vocabulary);
  const std::int64_t micro_steps = config_.micro_steps();
  const std::int64_t rows = config_.train.micro_batch;
  for (std::int64_t i = 0; i < micro_steps; ++i) {
    Batch part = batch.slice(i * rows, rows);
    part.known_count = loaded.slice(i * rows, rows).counted();
    model_.gradients(ctx_, part, activations_, i == 0 ? Write::kOverwrite : Write::kAccumulate,
                     1.0 / static_cast<double>(micro_steps));
  }
  StepMetrics metrics;
  metrics.learning_rate = learning_rate_at(config_.train, state_.step, steps());
  metrics.norm = optimizer_.step(ctx_, metrics.learning_rate);
  copy_to_host(&metrics.loss, activations_.total_loss.raw(), sizeof(metrics.loss), ctx_.device());
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  ++state_.step;
  state_.tokens += config_.train.batch_tokens;
  state_.seconds += seconds;
  metrics.step = state_.step;
  metrics.tokens = state_.tokens;
  metrics.seconds = state_.seconds;
  metrics.tokens_per_second = static_cast<double>(config_.train.batch_tokens) / seconds;
  return metrics;
}

void Trainer::check_health(const StepMetrics& metrics, const TrainObserver& observer) {
  const double guessing = std::log(static_cast<double>(config_.model.vocabulary));
  const bool finite = std::isfinite(metrics.loss) && std::isfinite(metrics.norm);
  if (finite && metrics.loss <= 2.0 * guessing) {
    return;
  }
  // Not among the run's own checkpoints, where it would push out the last good one.
  const auto checkpoint = save_checkpoint(folder_ / "failed", config_, model_, optimizer_, state_);
  observer.checkpoint(checkpoint);
  throw TrainingError(fmt::format(
      "step {}: the loss is {:.3g} and the gradient's norm {:.3g}, where guessing has {:.3g}; the "
      "run stops, its state is kept in {}. Lower train.learning_rate or lengthen "
      "train.warmup_steps, and begin again in another folder",
      metrics.step, metrics.loss, metrics.norm, guessing, checkpoint.string()));
}

double Trainer::validate() {
  const std::int64_t micro_tokens = config_.train.micro_batch * config_.model.length;
  const std::int64_t available = validation_->windows() / config_.train.micro_batch;
  const std::int64_t batches =
      std::max<std::int64_t>(std::min(config_.train.validate_tokens / micro_tokens, available), 1);
  TokenBatch batch;
  const Arena arena = Arena::plan(Device{}, [&](Arena& plan) { batch = validation_->place(plan); });
  double loss = 0.0;
  for (std::int64_t i = 0; i < batches; ++i) {
    validation_->fill(i, batch);
    loss += model_.loss(ctx_, device_batch_.upload(ctx_, batch_of(batch), config_.model.vocabulary),
                        activations_);
  }
  return loss / static_cast<double>(batches);
}

void Trainer::save(const TrainObserver& observer) {
  const auto checkpoint = save_checkpoint(folder_, config_, model_, optimizer_, state_);
  saved_step_ = state_.step;
  observer.checkpoint(checkpoint);
}

}  // namespace carope
