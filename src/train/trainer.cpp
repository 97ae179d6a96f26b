#include "train/trainer.h"

#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "core/cuda.h"
#include "core/error.h"
#include "core/file.h"
#include "core/version.h"
#include "train/run_data.h"

namespace carope {
namespace {

/// Keeps what the run was made of: its configuration, this program's version and the data's hash;
/// and what it takes: a device, and so much of its memory, for each rank.
void describe_run(const RunConfig& config, const Context& ctx, int ranks, std::size_t memory,
                  const std::filesystem::path& folder) {
  write_file(folder / "config.toml", to_toml(config.resolved));
  const nlohmann::ordered_json run{
      {"version", version()},
      {"seed", config.train.seed},
      {"data_manifest_sha256", data_hash(config.data.path)},
      {"device", ctx.device().kind == DeviceKind::kCuda
                     ? cuda::devices().at(static_cast<std::size_t>(ctx.device().index)).name
                     : fmt::format("CPU, {} threads", ctx.threads())},
      {"ranks", ranks},
      {"precision", to_string(ctx.compute())},
      {"memory_bytes", memory}};
  write_file(folder / "run.json", run.dump(2) + "\n");
}

/// Room for a micro-batch; where there is none, the error says what there is room for.
Activations plan_training(const Context& ctx, const Gpt& model, const RunConfig& config,
                          int ranks) {
  const auto plan = [&](std::int64_t rows, bool recompute) {
    return model.plan({.batch = rows,
                       .length = config.model.length,
                       .purpose = recompute ? Purpose::kRecomputing : Purpose::kTraining,
                       .documents = config.data.documents});
  };
  // What is suggested has to leave room for what a step takes besides: kernels, and their scratch.
  constexpr std::size_t kBesides = std::size_t{1} << 30;
  const auto fits = [&](std::int64_t rows, bool recompute) {
    try {
      const Memory besides(ctx.device(), kBesides);
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
      if (config.rows_a_step() % (ranks * fewer) != 0) {
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

/// Sums values of which rank r had numbers r, r + ranks, ..., and which came in the order of the
/// ranks, in the order of their numbers: what one rank would get.
double sum_of_dealt(const std::vector<double>& values, int ranks) {
  const auto size = static_cast<std::ptrdiff_t>(values.size());
  std::vector<double> ordered(values.size());
  auto value = values.begin();
  for (std::ptrdiff_t rank = 0; rank < ranks; ++rank) {
    for (std::ptrdiff_t i = rank; i < size; i += ranks) {
      ordered[static_cast<std::size_t>(i)] = *value++;
    }
  }
  return std::accumulate(ordered.begin(), ordered.end(), 0.0);
}

}  // namespace

Trainer::Trainer(Context& ctx, Communicator& ranks, const RunConfig& config,
                 std::filesystem::path folder, const TrainerOptions& options)
    : ctx_(ctx),
      ranks_(ranks),
      config_((require_data(config), require_even_share(config, ranks.size()), config)),
      folder_(std::move(folder)),
      model_(config.model, ctx.device(), ctx.compute(),
             {.rank = ranks.rank(), .ranks = ranks.size(), .bucket_bytes = options.bucket_bytes}),
      optimizer_(model_.memory().own(), config.optimizer, ctx.device()),
      exchange_(ranks, model_.memory(), ctx.device(), options.sums),
      activations_(plan_training(ctx, model_, config, ranks.size())) {
  if (first()) {
    make_folder(folder_);
    lock_.emplace(folder_);
  }
  if (options.resume) {
    require_same_data(folder_, config_.data.path);
    state_ = load_checkpoint(find_checkpoint(folder_), trained());
    saved_step_ = state_.step;
  } else {
    begin();
  }
  loader_ = open_training(config_, state_.step, ranks_);
  validation_ = open_validation(config_, config_.train.micro_batch);
  // Waits for all ranks, too: nothing of the folder changes before they have read it.
  require_same_step(ranks_, state_.step, folder_);
  if (first()) {
    log_ = std::make_unique<MetricsLog>(folder_, state_.step);
  }
}

void Trainer::begin() {
  if (first()) {
    check<FileError>(
        list_checkpoints(folder_).empty(),
        "{} holds a run already; give --resume to go on with it, or name another folder",
        folder_.string());
    describe_run(config_, ctx_, ranks_.size(),
                 model_.bytes() + optimizer_.bytes() + activations_.bytes(), folder_);
  }
  model_.initialise(config_.train.seed);
}

bool Trainer::run(const TrainObserver& observer, const std::atomic<bool>& stop) {
  const auto due = [&](std::int64_t every) { return every > 0 && state_.step % every == 0; };
  const auto stopped = [&] {
    double asked = stop ? 1.0 : 0.0;  // by a signal that may not have come to all ranks
    ranks_.sum({&asked, 1});
    return asked > 0.0;
  };
  const auto last = [&] { return state_.step == steps(); };
  while (state_.step < steps() && !stopped()) {
    try {
      const StepMetrics metrics = step();
      check_health(metrics, observer);
      if (first()) {
        log_->add(metrics);
        observer.step(metrics);
      }
      if (last() || due(config_.train.validate_every)) {
        const ValidationMetrics validation{state_.step, state_.tokens, validate()};
        check_health(validation, observer);
        if (first()) {
          log_->add(validation);
          observer.validation(validation);
        }
      }
    } catch (const FileError&) {
      save_if_possible(observer);
      throw;
    }
    if (last() || due(config_.train.checkpoint_every)) {
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
  const Batch batch =
      device_batch_.upload(ctx_, batch_of(loader_->next()), config_.model.vocabulary);
  StepMetrics metrics;
  metrics.learning_rate = learning_rate_at(config_.train, state_.step, steps());
  metrics.loss = gradients(batch);
  optimizer_.update(ctx_, metrics.learning_rate, &ranks_);
  exchange_.share_weights(ctx_);
  metrics.norm = optimizer_.finish();
  metrics.loss += read_loss();
  ranks_.sum({&metrics.loss, 1});
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

double Trainer::gradients(const Batch& batch) {
  const std::int64_t rows = config_.train.micro_batch;
  const std::int64_t count = batch.seq.batch / rows;
  double loss = 0.0;
  for (std::int64_t i = 0; i < count; ++i) {
    const Batch part = batch.slice(i * rows, rows);
    const bool begins = i == 0 || exchange_.accumulates();
    loss += i > 0 && begins ? read_loss() : 0.0;  // which the model is about to begin anew
    model_.gradients(ctx_, part, activations_, begins ? Write::kOverwrite : Write::kAccumulate,
                     1.0 / static_cast<double>(config_.micro_steps()), [&](std::int64_t block) {
                       exchange_.finished(ctx_, block, i == 0, i + 1 == count);
                     });
  }
  exchange_.join(ctx_);
  return loss;
}

double Trainer::read_loss() {
  double loss = 0.0;
  copy_to_host(&loss, activations_.total_loss.raw(), sizeof(loss), ctx_.device());
  return loss;
}

void Trainer::check_health(const StepMetrics& metrics, const TrainObserver& observer) {
  const double guessing = std::log(static_cast<double>(config_.model.vocabulary));
  const bool finite = std::isfinite(metrics.loss) && std::isfinite(metrics.norm);
  if (!finite || metrics.loss > 2.0 * guessing) {
    fail(fmt::format("the loss is {:.3g} and the gradient's norm {:.3g}, where guessing has {:.3g}",
                     metrics.loss, metrics.norm, guessing),
         observer);
  }
}

/// A step's own loss is that before its update, so the last update shows here alone.
void Trainer::check_health(const ValidationMetrics& metrics, const TrainObserver& observer) {
  if (!std::isfinite(metrics.loss)) {
    fail(fmt::format("the validation loss is {:.3g}", metrics.loss), observer);
  }
}

void Trainer::fail(const std::string& what, const TrainObserver& observer) {
  // Not among the run's own checkpoints, where it would push out the last good one.
  const auto checkpoint = save_checkpoint(folder_ / "failed", config_, trained(), state_);
  if (first()) {
    observer.checkpoint(checkpoint);
  }
  throw TrainingError(fmt::format(
      "step {}: {}; the run stops, its state is kept in {}. Lower train.learning_rate or lengthen "
      "train.warmup_steps, and begin again in another folder",
      state_.step, what, checkpoint.string()));
}

double Trainer::validate() {
  const std::int64_t micro_tokens = config_.train.micro_batch * config_.model.length;
  const std::int64_t available = validation_->windows() / config_.train.micro_batch;
  const std::int64_t batches =
      std::max<std::int64_t>(std::min(config_.train.validate_tokens / micro_tokens, available), 1);
  TokenBatch batch;
  const Arena arena = Arena::plan(Device{}, [&](Arena& plan) { batch = validation_->place(plan); });
  std::vector<double> losses;
  for (std::int64_t i = ranks_.rank(); i < batches; i += ranks_.size()) {
    validation_->fill(i, batch);
    losses.push_back(model_.loss(
        ctx_, device_batch_.upload(ctx_, batch_of(batch), config_.model.vocabulary), activations_));
  }
  return sum_of_dealt(ranks_.gather(losses), ranks_.size()) / static_cast<double>(batches);
}

void Trainer::save_if_possible(const TrainObserver& observer) {
  if (ranks_.size() > 1 || saved_step_ == state_.step) {
    return;
  }
  try {
    save(observer);
  } catch (const Error&) {  // of a full disk, say: the user is told what went wrong first
  }
}

void Trainer::save(const TrainObserver& observer) {
  const auto checkpoint = save_checkpoint(folder_, config_, trained(), state_);
  saved_step_ = state_.step;
  if (first()) {
    observer.checkpoint(checkpoint);
  }
}

}  // namespace carope
