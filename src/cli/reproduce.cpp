#include <fmt/format.h>

#include <memory>

#include "cli/commands.h"
#include "cli/compute.h"
#include "cli/interrupt.h"
#include "cli/options.h"
#include "cli/ranks.h"
#include "cli/run_options.h"
#include "cli/score_options.h"
#include "cli/step_line.h"
#include "experiment/experiment.h"
#include "report/comparison_table.h"
#include "report/run_record.h"

namespace carope {
namespace {

struct Preset {
  std::string config;
  std::string title;
  Scoring scoring{};
};

/// At 16 times the training length too, and with what makes a result believed: all protocols, and
/// intervals by document.
Scoring thorough() {
  return {.lengths = {512, 1024, 2048, 4096, 8192},
          .all_protocols = true,
          .resample = Resample::kDocuments,
          .gate_tokens = 131'072};
}

const std::map<std::string, Preset>& reproductions() {
  static const std::map<std::string, Preset> kPresets{
      {"demo", {"demo", "Positional encodings on a synthetic corpus"}},
      {"tiny", {"paper-tiny", "GPT-Tiny: the paper's experiment"}},
      {"small", {"paper-small", "GPT-Small: the paper's experiment"}},
      {"tiny-short", {"short-tiny", "GPT-Tiny: the paper's experiment, shortened", thorough()}},
      {"small-short", {"short-small", "GPT-Small: the paper's experiment, shortened", thorough()}}};
  return kPresets;
}

struct ReproduceOptions {
  std::string preset = "demo";
  std::filesystem::path folder;
  std::vector<std::string> encodings;
  bool controls = false;
  int seeds = 1;
  std::vector<std::int64_t> lengths;
  std::optional<bool> all_protocols;
  std::optional<Resample> resample;
  std::optional<std::int64_t> gate_tokens;
  ComputeOptions compute;
  RankOptions ranks;
};

/// A preset's way of scoring, but for what the options say.
Scoring scoring_of(const ReproduceOptions& options, Scoring scoring) {
  scoring.lengths = options.lengths.empty() ? scoring.lengths : options.lengths;
  scoring.all_protocols = options.all_protocols.value_or(scoring.all_protocols);
  scoring.resample = options.resample.value_or(scoring.resample);
  scoring.gate_tokens = options.gate_tokens.value_or(scoring.gate_tokens);
  return scoring;
}

/// What the options and settings describe.
ExperimentConfig experiment_of(const ReproduceOptions& options, const RunOptions& overrides) {
  const Preset& preset = reproductions().at(options.preset);
  ExperimentConfig config{.title = preset.title,
                          .preset = options.preset,
                          .settings = overrides.overridden(preset_settings(preset.config)),
                          .seeds = options.seeds,
                          .folder = options.folder,
                          .scoring = scoring_of(options, preset.scoring)};
  check<ConfigError>(overrides.overridden({}).count("position") == 0,
                     "settings of [position] are what the runs differ in; choose among the "
                     "encodings with --encodings");
  if (!options.encodings.empty()) {
    config.variants = find_variants(options.encodings);
  } else if (options.controls) {
    const auto controls = control_variants();
    config.variants.insert(config.variants.end(), controls.begin(), controls.end());
  }
  return config;
}

/// Whether it came to its end. All ranks part in order in either case.
bool reproduce(const ReproduceOptions& options, const RunOptions& overrides) {
  Workplace workplace = open_workplace(options.compute, options.ranks);
  ExperimentConfig config = experiment_of(options, overrides);
  if (config.folder.empty()) {
    config.folder = std::filesystem::path("runs") / options.preset;
  }
  const std::size_t runs = plan_runs(config).size();
  const auto train = [&](Trainer& trainer, const PlannedRun& run, std::size_t index) {
    const std::int64_t log_every = std::max<std::int64_t>(trainer.steps() / 20, 1);
    const PoliteStop stop(workplace.first());
    const auto run_to_end = [&](const TrainObserver& observer) {
      if (!trainer.run(observer, stop.asked())) {
        stop.ask();
      }
      return !stop.asked();
    };
    if (!workplace.first()) {
      return run_to_end({});
    }
    StepLine line(trainer, workplace.ctx,
                  fmt::format("[{}/{}] {}", index + 1, runs, run.folder.filename().string()),
                  log_every);
    return run_to_end(line.observer());
  };
  const bool done = run_experiment(workplace.ctx, *workplace.ranks, config, train);
  if (!workplace.first()) {
    return done;
  }
  if (!done) {
    fmt::print(stderr, "interrupted; the same command goes on where it stopped\n");
    return false;
  }
  const RunCollection collection = load_runs({config.folder});
  fmt::print("{}\n{}\n", to_text(compare(group_runs(collection.runs))),
             (config.folder / "report.html").string());
  return true;
}

}  // namespace

void add_reproduce(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "reproduce",
      "Trains with every encoding of the paper, scores past the training length, and reports; goes "
      "on where it was stopped");
  const auto options = std::make_shared<ReproduceOptions>();
  std::vector<std::string> names;
  for (const auto& [name, preset] : reproductions()) {
    names.push_back(name);
  }
  command
      ->add_option(
          "--preset", options->preset,
          "demo: minutes on a CPU, on a corpus of its own; tiny, small: the paper's models "
          "and recipe, on shards of FineWeb-Edu in --data.path; tiny-short, small-short: the same "
          "at a hundredth or a sixtieth of the tokens, scored more thoroughly, on any shards of "
          "GPT-2's tokens")
      ->check(CLI::IsMember(names))
      ->capture_default_str();
  command->add_option("--out", options->folder, "folder for all runs; by default runs/PRESET");
  command->add_flag("--controls", options->controls,
                    "also what the paper did not run: rope-2.08e7, carope-frozen, carope-spread, "
                    "carope-literal, carope-embedding, sinusoidal-1, none, alibi");
  command
      ->add_option("--encodings", options->encodings,
                   "only these, separated by commas, by the names of tables")
      ->delimiter(',')
      ->excludes("--controls");
  command->add_option("--seeds", options->seeds, "runs of each encoding, which differ in the seed")
      ->capture_default_str();
  add_lengths_option(*command, options->lengths, "(short presets: 1 to 16) 1, 2, 4 and 8");
  CLI::Option* all = command->add_flag_callback(
      "--all-protocols", [options] { options->all_protocols = true; },
      "score by the protocols sliding and last, too, which takes twice as long; short presets "
      "do");
  command
      ->add_flag_callback(
          "--one-protocol", [options] { options->all_protocols = false; },
          "score by the paper's protocol, windows, alone; other presets do")
      ->excludes(all);
  add_resample_option(*command, options->resample, "windows (short presets: documents)");
  command
      ->add_option("--gate-tokens", options->gate_tokens,
                   "of the text to look at CARoPE's gate with; by default 16384 (short presets: "
                   "131072)")
      ->transform(as_quantity());
  add_compute_options(*command, options->compute);
  add_recompute_option(*command, options->compute);
  add_rank_options(*command, options->ranks);
  const auto overrides = RunOptions::add_overrides(*command);
  command->callback([options, overrides] {
    if (!reproduce(*options, *overrides)) {
      throw CLI::RuntimeError(kInterrupted);
    }
  });
}

}  // namespace carope
