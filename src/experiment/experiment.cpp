#include "experiment/experiment.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/file.h"
#include "eval/checkpoint_evaluation.h"
#include "eval/evaluation_json.h"
#include "eval/gate.h"
#include "report/page.h"
#include "report/run_record.h"
#include "train/run_data.h"

namespace carope {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kEvaluation = "evaluation.json";
constexpr const char* kGate = "gate.json";
constexpr std::int64_t kGateTokens = 16'384;

/// Says what the folder holds, for those who read it later. Runs of an earlier call stay part of
/// it.
void describe(const ExperimentConfig& config, const std::vector<PlannedRun>& runs) {
  const fs::path file = config.folder / "experiment.json";
  Json json{{"title", config.title}, {"preset", config.preset}, {"runs", Json::array()}};
  if (fs::exists(file)) {
    const Json before = Json::parse(read_file(file), nullptr, false);
    check<FileError>(before.is_object() && before.contains("runs") && before["runs"].is_array(),
                     "{} is not readable; remove it, and name all encodings again", file.string());
    json["runs"] = before["runs"];
  }
  for (const PlannedRun& run : runs) {
    const std::string name = run.folder.filename().string();
    if (std::find(json["runs"].begin(), json["runs"].end(), name) == json["runs"].end()) {
      json["runs"].push_back(name);
    }
  }
  write_file(file, json.dump(2) + "\n");
}

/// Whether everything of a run is there. Its evaluation is written last.
bool is_done(const PlannedRun& run) { return fs::exists(run.folder / kEvaluation); }

/// Begins a run, or goes on with what there is of it.
Trainer open_run(Context& ctx, const PlannedRun& run) {
  const bool begun = !list_checkpoints(run.folder).empty();
  return {ctx, run.config, run.folder, begun};
}

void score(Context& ctx, const PlannedRun& run, const Gpt& model) {
  std::optional<Tokenizer> tokenizer;
  if (const fs::path beside = tokenizer_beside_data(run.config); fs::exists(beside)) {
    tokenizer = Tokenizer::load(beside);
  }
  const auto gate = measure_gate(ctx, model, *open_validation(run.config), kGateTokens,
                                 tokenizer ? &*tokenizer : nullptr);
  if (gate) {
    write_file(run.folder / kGate, to_json(*gate));
  }
  EvalConfig eval{.tokens = run.config.train.validate_tokens};
  for (const std::int64_t times : {1, 2, 4, 8}) {
    eval.lengths.push_back(times * run.config.model.length);
  }
  write_file(run.folder / kEvaluation, to_json(evaluate_checkpoints(ctx, {run.folder}, eval)[0]));
}

void write_results(const ExperimentConfig& config) {
  const RunCollection collection = load_runs({config.folder});
  write_report(config.folder, collection.title, collection.runs);
}

}  // namespace

std::vector<PlannedRun> plan_runs(const ExperimentConfig& config) {
  check<ConfigError>(config.seeds >= 1, "{} seeds are not possible; give 1 or more", config.seeds);
  const RunConfig first = read_run(config.settings);
  std::vector<PlannedRun> runs;
  for (std::int64_t i = 0; i < config.seeds; ++i) {
    const auto seed = static_cast<std::int64_t>(first.train.seed) + i;
    for (const Variant& variant : config.variants) {
      Settings settings = config.settings;
      settings["train"]["seed"] = seed;
      settings["position"] = variant.options;
      settings["position"]["encoding"] = variant.encoding;
      runs.push_back({variant.label, config.folder / fmt::format("{}-seed{}", variant.label, seed),
                      read_run(settings)});
    }
  }
  return runs;
}

bool run_experiment(Context& ctx, const ExperimentConfig& config, const TrainRun& train) {
  const std::vector<PlannedRun> runs = plan_runs(config);
  require_data(runs.front().config);
  make_folder(config.folder);
  const FolderLock lock(config.folder);
  for (const PlannedRun& run : runs) {
    if (!list_checkpoints(run.folder).empty()) {
      resumed_config(run.folder, run.config.resolved);
    }
  }
  describe(config, runs);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const PlannedRun& run = runs[i];
    if (is_done(run)) {
      continue;
    }
    Trainer trainer = open_run(ctx, run);
    write_file(run.folder / "label.json",
               Json{{"label", run.label}, {"order", i % config.variants.size()}}.dump() + "\n");
    if (!train(trainer, run, i)) {
      return false;
    }
    score(ctx, run, trainer.model());
    write_results(config);
  }
  write_results(config);
  return true;
}

}  // namespace carope
