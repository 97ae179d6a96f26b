#include <fmt/format.h>

#include <memory>

#include "cli/commands.h"
#include "cli/compute.h"
#include "cli/interrupt.h"
#include "cli/options.h"
#include "cli/run_options.h"
#include "cli/step_line.h"
#include "core/progress.h"
#include "dist/launch.h"
#include "train/trainer.h"

namespace carope {
namespace {

struct TrainOptions {
  std::filesystem::path folder;
  bool resume = false;
  bool exact_sums = false;
  ComputeOptions compute;
};

void train(const TrainOptions& options, const Settings& settings) {
  require_single_process(launch_from_environment());
  Context ctx = open_context(options.compute);
  const RunConfig config =
      options.resume ? saved_config(find_checkpoint(options.folder)) : read_run(settings);
  require_same(config, settings, options.folder);
  const auto ranks = make_alone();
  Trainer trainer(
      ctx, *ranks, config, options.folder,
      {.resume = options.resume, .sums = options.exact_sums ? Sums::kExact : Sums::kFast});
  StepLine line(trainer, ctx);
  const PoliteStop stop;
  if (!trainer.run(line.observer(), stop.asked())) {
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
  command->add_flag("--exact-sums", options->exact_sums,
                    "sum gradients in fp64, so that the losses do not depend on how many processes "
                    "train together; on the CPU only");
  add_compute_options(*command, options->compute);
  add_recompute_option(*command, options->compute);
  const auto run = RunOptions::add(*command);
  command->callback([options, run] { train(*options, run->settings()); });
}

}  // namespace carope
