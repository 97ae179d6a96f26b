#include <fmt/format.h>

#include <memory>

#include "cli/commands.h"
#include "cli/compute.h"
#include "cli/interrupt.h"
#include "cli/options.h"
#include "cli/ranks.h"
#include "cli/run_options.h"
#include "cli/step_line.h"
#include "core/error.h"
#include "report/run_record.h"
#include "train/explain.h"
#include "train/run_data.h"
#include "train/trainer.h"

namespace carope {
namespace {

constexpr const char* kAuto = "auto";

struct TrainOptions {
  std::filesystem::path folder;
  CLI::Option* out = nullptr;
  CLI::Option* resume = nullptr;
  std::string resume_when;  // "auto", or nothing
  bool exact_sums = false;
  bool explain = false;
  ComputeOptions compute;
  RankOptions ranks;
};

/// Refuses a folder that holds something other than a run.
void require_place_of_run(const std::filesystem::path& folder) {
  require_no_checkpoint(folder);
  check<FileError>(!is_experiment(folder) || !list_checkpoints(folder).empty(),
                   "{} holds the runs of an experiment already; name one of these to go on with "
                   "it, or another folder",
                   folder.string());
}

/// A path as a shell takes it for one word.
std::string shell_word(const std::filesystem::path& path) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:=@%+,";
  const std::string text = path.string();
  if (!text.empty() && text.find_first_not_of(kPlain) == std::string::npos) {
    return text;
  }
  std::string word = "'";
  for (const char c : text) {
    word += c == '\'' ? std::string("'\\''") : std::string(1, c);
  }
  return word + "'";
}

/// What begins a run that was stopped before its first checkpoint.
std::string how_to_begin(const std::filesystem::path& folder) {
  const std::filesystem::path config = folder / "config.toml";
  return std::filesystem::exists(config)
             ? fmt::format("begin again with: carope train --resume auto --config {} --out {}",
                           shell_word(config), shell_word(folder))
             : "check the folder, or begin there with --resume auto";
}

/// Whether to go on; that there is nothing yet is an error unless it was left open.
bool resumes(const TrainOptions& options) {
  if (options.resume->count() == 0) {
    return false;
  }
  const bool possible = !list_checkpoints(options.folder).empty();
  check<FileError>(possible || options.resume_when == kAuto,
                   "{} holds no complete checkpoint, so there is nothing to resume yet; {}",
                   options.folder.string(), how_to_begin(options.folder));
  return possible;
}

/// Where the given settings say that the data is, if they do.
std::string* given_data(Settings& settings) {
  const auto data = settings.find("data");
  if (data == settings.end()) {
    return nullptr;
  }
  const auto path = data->second.find("path");
  return path == data->second.end() ? nullptr : std::get_if<std::string>(&path->second);
}

/// What a run goes on with: what it was begun with, but that its data may lie elsewhere now.
RunConfig resumed(const std::filesystem::path& run, Settings given) {
  RunConfig config = resumed_config(run);
  if (const std::string* path = given_data(given); path != nullptr && is_data_of(run, *path)) {
    Settings moved = config.resolved;
    moved["data"]["path"] = *path;
    config = read_run(moved);
    given["data"].erase("path");
  }
  require_same(config, given, run);
  return config;
}

/// Whether it came to its end. All ranks part in order in either case.
bool train(const TrainOptions& options, Settings settings) {
  if (std::string* path = given_data(settings); path != nullptr && !path->empty()) {
    *path = std::filesystem::absolute(*path).lexically_normal().string();  // found from any folder
  }
  Workplace workplace = open_workplace(options.compute, options.ranks);
  require_place_of_run(options.folder);
  const bool resume = resumes(options);
  const RunConfig config = resume ? resumed(options.folder, settings) : read_run(settings);
  Trainer trainer(workplace.ctx, *workplace.ranks, config, options.folder,
                  {.resume = resume, .sums = options.exact_sums ? Sums::kExact : Sums::kFast});
  const std::unique_ptr<StepLine> line =
      workplace.first() ? std::make_unique<StepLine>(trainer, workplace.ctx) : nullptr;
  if (line && std::filesystem::is_regular_file(config.data.path)) {
    line->say(fmt::format(
        "warning: data.path = {} is one shard, so the run is validated on what it is trained on; "
        "name a folder with shards for both",
        config.data.path));
  }
  const PoliteStop stop(workplace.first());
  const bool ended = trainer.run(line ? line->observer() : TrainObserver{}, stop.asked());
  if (!ended) {
    stop.ask();
    if (line) {
      line->say("interrupted; go on with: carope train --resume --out " +
                shell_word(options.folder));
    }
  }
  return ended;
}

}  // namespace

void add_train(CLI::App& app) {
  CLI::App* command = app.add_subcommand("train", "Trains a model on token shards");
  const auto options = std::make_shared<TrainOptions>();
  options->out = command->add_option("--out", options->folder, "folder of the run");
  options->resume =
      command
          ->add_option(
              "--resume", options->resume_when,
              "go on from the folder's newest checkpoint; --resume auto begins where there "
              "is none, so that one command does for a job that may be started again")
          ->expected(0, 1)
          ->type_name("[auto]")
          ->check(CLI::IsMember({"", kAuto}));
  command->add_flag("--exact-sums", options->exact_sums,
                    "sum gradients in fp64, so that the losses do not depend on how many processes "
                    "train together; on the CPU only");
  command->add_flag("--explain", options->explain,
                    "print which kernels would serve and what memory they would take, and stop");
  add_compute_options(*command, options->compute);
  add_recompute_option(*command, options->compute);
  add_rank_options(*command, options->ranks);
  const auto run = RunOptions::add(*command);
  command->callback([options, run] {
    if (options->explain) {
      const RunConfig config = options->resume->count() > 0
                                   ? resumed(options->folder, run->settings())
                                   : read_run(run->settings());
      fmt::print("{}", explain_training(open_context(options->compute), config));
      return;
    }
    if (options->out->count() == 0) {
      throw CLI::RequiredError("--out");
    }
    if (!train(*options, run->settings())) {
      throw CLI::RuntimeError(kInterrupted);
    }
  });
}

}  // namespace carope
