#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "core/context.h"
#include "eval/perplexity.h"
#include "experiment/variants.h"
#include "train/trainer.h"

namespace carope {

/// How the runs of an experiment are scored.
struct Scoring {
  std::vector<std::int64_t> lengths{};  // none: 1, 2, 4 and 8 times the training length
  bool all_protocols = false;           // by sliding and last, too
  Resample resample = Resample::kWindows;
  std::int64_t gate_tokens = 16'384;  // of the text that the gate is looked at with
};

/// The same model trained with several encodings on the same data in the same order, and scored
/// past the length it was trained at.
struct ExperimentConfig {
  std::string title{};
  std::string preset{};
  Settings settings{};  // of every run; the encoding and the seed are the experiment's
  std::vector<Variant> variants = paper_variants();
  int seeds = 1;                   // from train.seed on
  std::filesystem::path folder{};  // a folder for each run, and the report
  Scoring scoring{};
};

/// One run of an experiment.
struct PlannedRun {
  std::string label;
  std::size_t order;  // of the label in tables
  std::filesystem::path folder;
  RunConfig config;
};

/// The runs in the order they are made: for each seed, all encodings.
std::vector<PlannedRun> plan_runs(const ExperimentConfig& config);

/// Trains one run to its end, from where it stands; false if it was interrupted.
using TrainRun = std::function<bool(Trainer& trainer, const PlannedRun& run, std::size_t index)>;

/// Makes what is missing of an experiment, run by run: trains, looks at the gate, scores. After
/// each run it writes results.json, table.md and report.html. Where no data is named it is made, in
/// the folder. Returns false if it was interrupted. A run whose training fails does not keep the
/// others from being made. Everything is left as it was where the folder holds an experiment with
/// other settings. Ranks that call it together share the work, of which the first writes all files.
bool run_experiment(Context& ctx, Communicator& ranks, ExperimentConfig config,
                    const TrainRun& train);

}  // namespace carope
