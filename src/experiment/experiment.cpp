#include "experiment/experiment.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>

#include "core/file.h"
#include "core/json.h"
#include "data/loader/token_stream.h"
#include "data/shards/manifest.h"
#include "eval/checkpoint_evaluation.h"
#include "eval/evaluation_json.h"
#include "eval/gate.h"
#include "experiment/demo_data.h"
#include "position/registry.h"
#include "report/page.h"
#include "report/run_record.h"
#include "train/run_data.h"

namespace carope {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kExperiment = "experiment.json";
constexpr const char* kEvaluation = "evaluation.json";
constexpr const char* kGate = "gate.json";

/// The paper's comes last: where its score is, everything was scored.
std::vector<Protocol> protocols_of(const Scoring& scoring) {
  return scoring.all_protocols
             ? std::vector{Protocol::kSliding, Protocol::kLast, Protocol::kWindows}
             : std::vector{Protocol::kWindows};
}

/// Where a run keeps its score by a protocol. That of the paper has the plain name.
fs::path evaluation_file(const fs::path& run, Protocol protocol) {
  return run / (protocol == Protocol::kWindows
                    ? std::string(kEvaluation)
                    : fmt::format("evaluation-{}.json", to_string(protocol)));
}

std::vector<std::int64_t> lengths_of(const Scoring& scoring, const RunConfig& config) {
  constexpr std::array<std::int64_t, 4> kTimes{1, 2, 4, 8};  // the training length
  std::vector<std::int64_t> lengths = scoring.lengths;
  for (std::size_t i = 0; scoring.lengths.empty() && i < kTimes.size(); ++i) {
    lengths.push_back(kTimes[i] * config.model.length);
  }
  return lengths;
}

/// The names of the runs that earlier calls made in a folder.
std::vector<std::string> runs_so_far(const fs::path& folder) {
  const fs::path file = folder / kExperiment;
  if (!fs::exists(file)) {
    return {};
  }
  const Json json = parse_json<Json>(read_file(file), file.string(), false);
  try {
    return json.at("runs").get<std::vector<std::string>>();
  } catch (const Json::exception&) {
    throw FileError(
        fmt::format("{} is not readable; remove it, and name all encodings again", file.string()));
  }
}

/// Says what the folder holds, for those who read it later. Runs of earlier calls stay part of it.
void describe(const ExperimentConfig& config, const std::vector<PlannedRun>& runs) {
  std::vector<std::string> names = runs_so_far(config.folder);
  for (const PlannedRun& run : runs) {
    const std::string name = run.folder.filename().string();
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      names.push_back(name);
    }
  }
  const Json json{{"title", config.title}, {"preset", config.preset}, {"runs", names}};
  write_file(config.folder / kExperiment, json.dump(2) + "\n");
}

/// Whether a run has anything to lose.
bool is_begun(const fs::path& run) {
  return fs::exists(run / kEvaluation) || !list_checkpoints(run).empty();
}

/// Refuses a folder that is a run's own.
void require_no_run(const fs::path& folder) {
  require_no_checkpoint(folder);
  check<FileError>(is_experiment(folder) || !(is_begun(folder) || fs::exists(folder / "run.json")),
                   "{} holds a run already; name another folder for the experiment",
                   folder.string());
}

/// Refuses settings other than those that a run was begun with. Its data may have moved.
void require_same_run(Settings given, const fs::path& data, const fs::path& run) {
  if (is_data_of(run, data)) {
    given["data"].erase("path");
  }
  require_same(saved_config(run), given, run);
  require_same_data(run, data);
}

/// Refuses settings other than those that the folder's runs were begun with.
void require_same_experiment(const ExperimentConfig& config, const std::vector<PlannedRun>& runs) {
  const fs::path data = runs.front().config.data.path;
  for (const std::string& name : runs_so_far(config.folder)) {
    const fs::path folder = config.folder / name;
    if (is_begun(folder)) {
      Settings shared = runs.front().config.resolved;
      shared.erase("position");
      shared["train"].erase("seed");
      require_same_run(std::move(shared), data, folder);
    }
  }
  for (const PlannedRun& run : runs) {
    if (is_begun(run.folder)) {
      require_same_run(run.config.resolved, data, run.folder);
    }
  }
}

/// Refuses before the training what could not be scored after it.
void require_enough_to_score(const Scoring& scoring, const RunConfig& config) {
  const std::vector<std::int64_t> lengths = lengths_of(scoring, config);
  const std::int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  check<ConfigError>(config.train.validate_tokens >= longest,
                     "train.validate_tokens = {} is less than one window of {} tokens, the longest "
                     "that is scored in the end; give at least that",
                     config.train.validate_tokens, longest);
  const std::int64_t tokens = TokenStream(find_shards(config.data.path, Split::kValidation)).size();
  check<ConfigError>(tokens > longest,
                     "{} has {} tokens for validation, but {} are needed for one window of the "
                     "longest length that "
                     "is scored; prepare more, or choose shorter --lengths",
                     config.data.path, tokens, longest + 1);
  check<ConfigError>(
      scoring.resample == Resample::kWindows || Manifest::load(config.data.path).has_value(),
      "--resample documents needs a manifest.json in {}, which says how documents begin; prepare "
      "the data with carope data prepare, or resample windows",
      config.data.path);
}

/// Whether a file is the score of a run's end, at all lengths, with intervals as they are asked
/// for.
bool is_whole_score(const fs::path& evaluation, const Scoring& scoring,
                    const RunConfig& config) try {
  const Json json = fs::exists(evaluation)
                        ? parse_json<Json>(read_file(evaluation), evaluation.string(), false)
                        : Json();
  if (!json.is_object() || json.value("step", std::int64_t{-1}) != config.steps() ||
      json.value("resample", "") != to_string(scoring.resample)) {
    return false;
  }
  std::set<std::int64_t> scored;
  for (const Json& each : json.value("lengths", Json::array())) {
    scored.insert(each.value("length", std::int64_t{0}));
  }
  const std::vector<std::int64_t> lengths = lengths_of(scoring, config);
  return std::all_of(lengths.begin(), lengths.end(),
                     [&](std::int64_t length) { return scored.contains(length); });
} catch (const Json::exception&) {  // it is made again
  return false;
}

/// Whether everything of a run is there.
bool is_done(const PlannedRun& run, const Scoring& scoring) {
  const GptConfig& model = run.config.model;
  const bool gate =
      gate_of(make_encoding(model.encoding, model.shape(), model.encoding_options)) != nullptr;
  const std::vector<Protocol> protocols = protocols_of(scoring);
  return std::all_of(protocols.begin(), protocols.end(),
                     [&](Protocol protocol) {
                       return is_whole_score(evaluation_file(run.folder, protocol), scoring,
                                             run.config);
                     }) &&
         (!gate || fs::exists(run.folder / kGate));
}

/// Refuses to train again what was trained and scored, because of a score that it lacks.
void require_checkpoint_to_score(const PlannedRun& run, const Scoring& scoring) {
  check<ConfigError>(
      !fs::exists(run.folder / kEvaluation) || !list_checkpoints(run.folder).empty() ||
          is_done(run, scoring),
      "{} was trained, but not scored at all that is asked for, and has no checkpoint to score; "
      "ask for the lengths, protocols and intervals that it has, or remove the folder to train it "
      "again",
      run.folder.string());
}

/// The place of a variant in tables, the same in every call.
std::size_t order_of(const Variant& variant) {
  const std::vector<Variant> known = known_variants();
  return static_cast<std::size_t>(
      std::find_if(known.begin(), known.end(),
                   [&](const Variant& other) { return other.label == variant.label; }) -
      known.begin());
}

/// Looks at the gate and at the perplexities of a run that has been trained.
void score(Context& ctx, Communicator& ranks, const PlannedRun& run, const Scoring& scoring) {
  const bool first = ranks.rank() == 0;
  const fs::path checkpoint = find_checkpoint(run.folder);
  const std::int64_t step = checkpoint_state(checkpoint).step;
  require_same_step(ranks, step, run.folder);
  Gpt model(run.config.model, ctx.device(), ctx.compute());
  load_weights(checkpoint, model);
  if (first) {
    const std::optional<Tokenizer> tokenizer = load_tokenizer_beside_data(run.config);
    const auto gate = measure_gate(ctx, model, *open_validation(run.config, 1), scoring.gate_tokens,
                                   tokenizer ? &*tokenizer : nullptr);
    if (gate) {
      write_file(run.folder / kGate, to_json(*gate));
    }
  }
  const EvalConfig eval{.lengths = lengths_of(scoring, run.config),
                        .tokens = run.config.train.validate_tokens,
                        .resample = scoring.resample};
  for (Evaluation& evaluation :
       evaluate_model(ctx, ranks, model, run.config, eval, protocols_of(scoring),
                      run.config.data.path, "Scoring " + run.folder.filename().string())) {
    evaluation.checkpoint = checkpoint.lexically_relative(run.folder.parent_path()).string();
    evaluation.step = step;
    if (first) {
      write_file(evaluation_file(run.folder, evaluation.config.protocol), to_json(evaluation));
    }
  }
}

void write_results(const ExperimentConfig& config) {
  const RunCollection collection = load_runs({config.folder});
  write_report(config.folder, collection.title, collection.runs);
}

}  // namespace

std::vector<PlannedRun> plan_runs(const ExperimentConfig& config) {
  constexpr std::int64_t kMostSeeds = 1000;
  check<ConfigError>(1 <= config.seeds && config.seeds <= kMostSeeds,
                     "--seeds {} is not possible; give 1 to {}", config.seeds, kMostSeeds);
  const RunConfig first = read_run(config.settings);
  std::vector<PlannedRun> runs;
  for (std::int64_t i = 0; i < config.seeds; ++i) {
    const auto seed = static_cast<std::int64_t>(first.train.seed) + i;
    for (const Variant& variant : config.variants) {
      Settings settings = config.settings;
      settings["train"]["seed"] = seed;
      settings["position"] = variant.options;
      settings["position"]["encoding"] = variant.encoding;
      runs.push_back({variant.label, order_of(variant),
                      config.folder / fmt::format("{}-seed{}", variant.label, seed),
                      read_run(settings)});
    }
  }
  return runs;
}

bool run_experiment(Context& ctx, Communicator& ranks, ExperimentConfig config,
                    const TrainRun& train) {
  const bool leads = ranks.rank() == 0;
  config.folder = fs::absolute(config.folder).lexically_normal();
  require_no_run(config.folder);
  const fs::path given = read_run(config.settings).data.path;
  const bool own_data = given.empty();
  const fs::path data = config.folder / "data";
  config.settings["data"]["path"] =
      (own_data ? demo_shards(data) : fs::absolute(given).lexically_normal()).string();
  const std::vector<PlannedRun> runs = plan_runs(config);
  const RunConfig& first = runs.front().config;
  if (!own_data) {
    require_data(first);
  }
  std::optional<FolderLock> lock;
  if (leads) {
    make_folder(config.folder);
    lock.emplace(config.folder);
  }
  require_same_experiment(config, runs);
  if (own_data && leads) {
    make_demo_data(data, first.model.vocabulary, first.train.tokens, ctx.threads());
  }
  ranks.meet();  // until there is data
  require_enough_to_score(config.scoring, first);
  for (const PlannedRun& run : runs) {
    require_checkpoint_to_score(run, config.scoring);
  }
  ranks.meet();  // before what all have read changes
  if (leads) {
    describe(config, runs);
  }
  std::string failures;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const PlannedRun& run = runs[i];
    if (is_done(run, config.scoring)) {
      continue;
    }
    try {
      Trainer trainer(ctx, ranks, run.config, run.folder,
                      {.resume = !list_checkpoints(run.folder).empty()});
      if (leads) {
        write_file(run.folder / "label.json",
                   Json{{"label", run.label}, {"order", run.order}}.dump() + "\n");
      }
      double interrupted = train(trainer, run, i) ? 0.0 : 1.0;
      ranks.sum({&interrupted, 1});  // which also waits for the first rank's checkpoint
      if (interrupted > 0.0) {
        return false;
      }
    } catch (const TrainingError& error) {
      failures += fmt::format("\n{}: {}", run.label, error.what());
      continue;  // what one encoding cannot do, others may
    }
    score(ctx, ranks, run, config.scoring);
    if (leads) {
      write_results(config);
    }
  }
  if (leads) {
    write_results(config);
  }
  check<TrainingError>(failures.empty(), "not every run could be trained:{}", failures);
  return true;
}

}  // namespace carope
