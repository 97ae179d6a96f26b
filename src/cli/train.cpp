#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <memory>

#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/options.h"
#include "cli/run_options.h"
#include "core/progress.h"
#include "dist/launch.h"
#include "train/trainer.h"

namespace carope {
namespace {

/// A line that rewrites itself on a terminal, and a line a step in a log.
class StepLine {
 public:
  explicit StepLine(const Trainer& trainer) : steps_(trainer.steps()) {}
  ~StepLine() {
    if (open_) {
      fmt::print(stderr, "\n");  // what comes next, an error perhaps, has a line of its own
    }
  }

  void step(const StepMetrics& m) {
    const double left =
        static_cast<double>(steps_ - m.step) * m.seconds / static_cast<double>(m.step);
    const std::string line = fmt::format(
        "step {}/{}  loss {:.4f}  perplexity {:.2f}  norm {:.2f}  lr {:.2e}  {}/s  {} left", m.step,
        steps_, m.loss, std::exp(m.loss), m.norm, m.learning_rate,
        si(m.tokens_per_second, "tokens"), duration(left));
    fmt::print(stderr, "{}{}{}", terminal_ ? "\r" : "", line, terminal_ ? "\x1b[K" : "\n");
    open_ = terminal_;
  }

  void say(const std::string& text) {
    fmt::print(stderr, "{}{}\n", open_ ? "\n" : "", text);
    open_ = false;
  }

 private:
  const std::int64_t steps_;
  const bool terminal_ = isatty(STDERR_FILENO) != 0;
  bool open_ = false;  // the cursor stands behind a line that rewrites itself
};

struct TrainOptions {
  std::filesystem::path folder;
  bool resume = false;
  int threads = 0;
};

/// The configuration of the run in a folder. Settings that are given again must be the same: a run
/// that changes on the way can be neither repeated nor compared.
RunConfig resumed_config(const std::filesystem::path& folder, const Settings& given) {
  const RunConfig config = checkpoint_config(find_checkpoint(folder));
  Settings merged = config.resolved;
  for (const auto& [section, options] : given) {
    for (const auto& [key, value] : options) {
      merged[section][key] = value;
      check<ConfigError>(to_toml(read_run(merged).resolved) == to_toml(config.resolved),
                         "{}.{} = {} is not what {} was begun with; leave it out, or begin another "
                         "run",
                         section, key, to_string(value), folder.string());
    }
  }
  return config;
}

void train(const TrainOptions& options, const Settings& settings) {
  require_single_process(launch_from_environment());
  Context ctx = Context::cpu(options.threads);
  const RunConfig config =
      options.resume ? resumed_config(options.folder, settings) : read_run(settings);
  Trainer trainer(ctx, config, options.folder, options.resume);
  StepLine line(trainer);
  line.say(fmt::format("{}: {} parameters, {}, {} steps of {}", options.folder.string(),
                       si(static_cast<double>(trainer.model().parameter_count()), ""),
                       config.model.encoding, trainer.steps(),
                       si(static_cast<double>(config.train.batch_tokens), "tokens")));
  const bool complete = trainer.run(
      {.step = [&](const StepMetrics& m) { line.step(m); },
       .validation =
           [&](const ValidationMetrics& m) {
             line.say(fmt::format("step {}: validation loss {:.4f}, perplexity {:.2f}", m.step,
                                  m.loss, std::exp(m.loss)));
           },
       .checkpoint =
           [&](const std::filesystem::path& path) { line.say("saved " + path.string()); }},
      stop_politely());
  if (!complete) {
    line.say("interrupted; go on with: carope train --resume --out " + options.folder.string());
    throw CLI::RuntimeError(kInterrupted);
  }
}

}  // namespace

void add_train(CLI::App& app) {
  CLI::App* command = app.add_subcommand("train", "Trains a model on token shards");
  const auto options = std::make_shared<TrainOptions>();
  command->add_option("--out", options->folder, "folder of the run")->required();
  command->add_flag("--resume", options->resume, "go on from the folder's newest checkpoint");
  add_threads_option(*command, options->threads);
  const auto run = RunOptions::add(*command);
  command->callback([options, run] { train(*options, run->settings()); });
}

}  // namespace carope
