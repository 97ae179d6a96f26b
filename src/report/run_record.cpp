#include "report/run_record.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"

namespace carope {
namespace {

using Json = nlohmann::ordered_json;

/// Who writes a file that is damaged.
constexpr const char* kMakeAgain = "remove it and run carope reproduce again";
constexpr const char* kScaleAgain = "remove it and run carope eval --rope-scaling again";
constexpr const char* kMakeGateAgain =
    "remove it and run carope reproduce again (which makes it where evaluation.json is removed "
    "too)";

/// A number, or NaN where JSON has null for what is none.
double number_or_nan(const Json& json) {
  return json.is_null() ? std::numeric_limits<double>::quiet_NaN() : json.get<double>();
}

std::optional<double> optional_number(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found == json.end() || found->is_null() ? std::nullopt
                                                 : std::optional(found->get<double>());
}

/// Parses a file of JSON and hands it to `read`; what goes wrong in either names the file.
template <class Read>
void read_json(const std::filesystem::path& path, const char* remedy, const Read& read) {
  const std::string text = read_file(path);
  try {
    read(parse_json<Json>(text, path.string()));
  } catch (const Json::exception& error) {
    throw FileError(
        fmt::format("{} cannot be understood: {}; {}", path.string(), error.what(), remedy));
  }
}

void read_config(RunRecord& run) {
  static const std::vector<std::string> kSections{"model", "position", "data", "train",
                                                  "optimizer"};
  const std::filesystem::path path = run.folder / "config.toml";
  check<FileError>(std::filesystem::exists(path),
                   "{} is not the folder of a run: it has no config.toml; name a folder that "
                   "`carope train --out` made",
                   run.folder.string());
  try {
    run.settings = load_settings(path, kSections);
    OptionReader model("model", run.settings["model"]);
    run.layers = model.integer("layers", 0, 1);
    run.heads = model.integer("heads", 0, 1);
    run.width = model.integer("width", 0, 1);
    run.vocabulary = model.integer("vocabulary", 0, 1);
    run.length = model.integer("length", 0, 1);
    run.encoding = OptionReader("position", run.settings["position"]).text("encoding", "");
    check<ConfigError>(!run.encoding.empty(), "position.encoding is missing; name the encoding");
  } catch (const ConfigError& error) {
    throw FileError(fmt::format("{} cannot be used: {}", path.string(), error.what()));
  }
}

void read_run_file(RunRecord& run) {
  read_json(run.folder / "run.json", "train the run again, or copy its folder whole",
            [&](const Json& json) {
              run.version = json.at("version").get<std::string>();
              run.seed = json.at("seed").get<std::int64_t>();
              const Json sha = json.value("data_manifest_sha256", Json());
              run.data_sha256 = sha.is_string() ? sha.get<std::string>() : "";
              run.device = json.value("device", "");
              run.precision = json.value("precision", "");
              run.memory_bytes = optional_number(json, "memory_bytes");
            });
}

void read_metrics_line(RunRecord& run, const Json& line) {
  const auto tokens = line.at("tokens").get<std::int64_t>();
  if (line.contains("validation_loss")) {
    run.validation.push_back({tokens, number_or_nan(line["validation_loss"])});
    return;
  }
  run.training.push_back(
      {tokens, number_or_nan(line.at("loss")), number_or_nan(line.at("tokens_per_second"))});
  run.steps = line.at("step").get<std::int64_t>();
  run.training_tokens = tokens;
}

void read_metrics(RunRecord& run) {
  const std::filesystem::path path = run.folder / "metrics.jsonl";
  check<FileError>(std::filesystem::exists(path),
                   "{} does not exist, though the run was begun; copy the run's folder whole, or "
                   "remove it and train the run again",
                   path.string());
  std::istringstream lines(read_file(path));
  std::int64_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    const std::string place = fmt::format("{}:{}", path.string(), ++number);
    try {
      read_metrics_line(run, parse_json<Json>(line, place));
    } catch (const Json::exception& error) {
      // A program that was killed leaves its last line unfinished: that is no damage.
      check<FileError>(lines.eof(), "{} cannot be understood: {}; remove the line", place,
                       error.what());
    }
  }
}

LengthResult read_length(const Json& json, const std::filesystem::path& path, const char* remedy) {
  LengthResult result{.length = json.at("length").get<std::int64_t>(),
                      .perplexity = optional_number(json, "perplexity"),
                      .low = optional_number(json, "low"),
                      .high = optional_number(json, "high"),
                      .reason = json.value("reason", ""),
                      .positions = {},
                      .loss = optional_number(json, "loss"),
                      .units = {}};
  check<FileError>(result.length > 0, "{}: {} is no length; {}", path.string(), result.length,
                   remedy);
  for (const auto& number : {result.perplexity, result.low, result.high}) {
    check<FileError>(number.value_or(1.0) > 0.0, "{}: {} at length {} is no perplexity; {}",
                     path.string(), number.value_or(1.0), result.length, remedy);
  }
  if (!result.perplexity && result.reason.empty()) {
    result.reason =
        result.loss
            ? fmt::format("no number can hold the perplexity of a loss of {:.4g}", *result.loss)
            : "the evaluation has no number, and no reason for it";
  }
  for (const Json& place : json.value("positions", Json::array())) {
    result.positions.push_back({place.at("position").get<std::int64_t>(),
                                place.at("tokens").get<std::int64_t>(),
                                number_or_nan(place.at("loss"))});
  }
  const Json losses = json.value("unit_losses", Json::array());
  const Json tokens = json.value("unit_tokens", Json::array());
  check<FileError>(losses.size() == tokens.size(),
                   "{}: {} unit_losses and {} unit_tokens at length {} do not fit; {}",
                   path.string(), losses.size(), tokens.size(), result.length, remedy);
  for (std::size_t i = 0; i < losses.size(); ++i) {
    result.units.push_back({losses[i].get<double>(), tokens[i].get<std::int64_t>()});
  }
  return result;
}

EvaluationRecord read_evaluation(const std::filesystem::path& path,
                                 const char* remedy = kMakeAgain) {
  EvaluationRecord evaluation;
  read_json(path, remedy, [&](const Json& json) {
    evaluation.protocol = json.value("protocol", "");
    evaluation.rope_scaling = json.value("rope_scaling", "");
    evaluation.step = json.value("step", std::int64_t{0});
    evaluation.tokens = json.value("tokens", std::int64_t{0});
    for (const Json& each : json.at("lengths")) {
      evaluation.lengths.push_back(read_length(each, path, remedy));
    }
  });
  return evaluation;
}

void read_evaluations(RunRecord& run) {
  if (const auto path = run.folder / "evaluation.json"; std::filesystem::exists(path)) {
    run.evaluation = read_evaluation(path);
  }
  for (const char* protocol : {"sliding", "last"}) {
    const auto path = run.folder / fmt::format("evaluation-{}.json", protocol);
    if (std::filesystem::exists(path)) {
      run.further.emplace(protocol, read_evaluation(path));
    }
  }
}

std::vector<WordGate> read_words(const Json& head, const char* key) {
  std::vector<WordGate> words;
  for (const Json& each : head.value(key, Json::array())) {
    words.push_back({each.at("word").get<std::string>(), each.at("count").get<std::int64_t>(),
                     each.at("mean").get<double>()});
  }
  return words;
}

/// The figures index by layer, head and token: the numbers must be as many as the file says.
void check_gate(const GateRecord& gate, const std::filesystem::path& path) {
  constexpr std::size_t kQuantiles = 5;
  constexpr std::int64_t kMost = 4096;
  for (const std::int64_t count : {gate.layers, gate.heads, gate.pairs}) {
    check<FileError>(count >= 1 && count <= kMost,
                     "{}: {} layers, {} heads and {} pairs are no model's; {}", path.string(),
                     gate.layers, gate.heads, gate.pairs, kMakeGateAgain);
  }
  for (const HeadGate& head : gate.gates) {
    check<FileError>(head.layer >= 0 && head.layer < gate.layers && head.head >= 0 &&
                         head.head < gate.heads && head.quantiles.size() == kQuantiles,
                     "{}: the gate of layer {} and head {} does not fit {} layers of {} heads with "
                     "5 quantiles each; {}",
                     path.string(), head.layer, head.head, gate.layers, gate.heads, kMakeGateAgain);
  }
  const auto fits = [](const auto& list, std::size_t size) { return list.size() == size; };
  for (const auto& layer : gate.frequencies) {
    check<FileError>(
        fits(gate.frequencies, static_cast<std::size_t>(gate.layers)) &&
            fits(layer, static_cast<std::size_t>(gate.heads)) &&
            std::all_of(layer.begin(), layer.end(),
                        [&](const auto& head) { return fits(head, gate.passage.size()); }),
        "{}: passage.frequencies is not [{} layers][{} heads][{} tokens]; {}", path.string(),
        gate.layers, gate.heads, gate.passage.size(), kMakeGateAgain);
  }
}

void read_gate(RunRecord& run) {
  const std::filesystem::path path = run.folder / "gate.json";
  read_json(path, kMakeGateAgain, [&](const Json& json) {
    GateRecord gate{.layers = json.at("layers").get<std::int64_t>(),
                    .heads = json.at("heads").get<std::int64_t>(),
                    .pairs = json.at("pairs").get<std::int64_t>(),
                    .tokens = json.value("tokens", std::int64_t{0}),
                    .gates = {},
                    .passage = {},
                    .frequencies = {}};
    for (const Json& head : json.at("gates")) {
      gate.gates.push_back({.layer = head.at("layer").get<std::int64_t>(),
                            .head = head.at("head").get<std::int64_t>(),
                            .quantiles = head.at("quantiles").get<std::vector<double>>(),
                            .histogram = head.at("histogram").get<std::vector<double>>(),
                            .base = number_or_nan(head.at("base")),
                            .mean = number_or_nan(head.value("mean", Json())),
                            .deviation = number_or_nan(head.value("deviation", Json())),
                            .token_share = number_or_nan(head.value("token_share", Json())),
                            .slowest = read_words(head, "slowest"),
                            .fastest = read_words(head, "fastest")});
    }
    if (const auto passage = json.find("passage"); passage != json.end() && !passage->is_null()) {
      passage->at("tokens").get_to(gate.passage);
      passage->at("frequencies").get_to(gate.frequencies);
    }
    check_gate(gate, path);
    run.gate = std::move(gate);
  });
}

/// Whether training left something in a folder, be it whole or not.
bool was_begun(const std::filesystem::path& run) {
  const std::filesystem::path checkpoints = run / "checkpoints";
  return std::filesystem::exists(run / "metrics.jsonl") ||
         std::filesystem::exists(run / "evaluation.json") ||
         (std::filesystem::is_directory(checkpoints) && !std::filesystem::is_empty(checkpoints));
}

/// A folder's path without links to itself and to what it lies in.
std::filesystem::path whole_path(const std::filesystem::path& folder) {
  const std::filesystem::path path = std::filesystem::absolute(folder).lexically_normal();
  return path.has_filename() ? path : path.parent_path();
}

}  // namespace

std::string folder_name(const std::filesystem::path& folder) {
  return whole_path(folder).filename().string();
}

RunRecord load_run(const std::filesystem::path& folder) {
  check<FileError>(std::filesystem::exists(folder),
                   "{} does not exist; name the folder of a run or of an experiment",
                   folder.string());
  check<FileError>(std::filesystem::is_directory(folder),
                   "{} is not a folder; name the folder of a run", folder.string());
  RunRecord run;
  run.folder = folder;
  if (const auto parent = whole_path(folder).parent_path(); is_experiment(parent)) {
    run.experiment = parent;
  }
  read_config(run);
  read_run_file(run);
  read_metrics(run);
  read_evaluations(run);
  if (std::filesystem::exists(folder / "gate.json")) {
    read_gate(run);
  }
  if (std::filesystem::exists(folder / "label.json")) {
    read_json(folder / "label.json", "write {\"label\": \"name\", \"order\": 0}, or remove it",
              [&](const Json& json) {
                run.label = json.at("label").get<std::string>();
                run.order = json.value("order", RunRecord::kLast);
              });
  }
  return run;
}

std::vector<RunRecord> load_scaled(const RunRecord& run) {
  std::map<std::string, RunRecord> by_scaling;
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(run.folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("evaluation-scaled-") && name.ends_with(".json")) {
      files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  for (const std::filesystem::path& file : files) {
    EvaluationRecord evaluation = read_evaluation(file, kScaleAgain);
    std::string scaling = evaluation.rope_scaling;
    if (evaluation.step != run.steps) {
      scaling += fmt::format(", step {}", evaluation.step);
    }
    if (run.evaluation && run.evaluation->tokens != evaluation.tokens) {
      scaling += fmt::format(", on {} tokens", evaluation.tokens);
    }
    check<FileError>(!evaluation.rope_scaling.empty(), "{} does not say its rope_scaling; {}",
                     file.string(), kScaleAgain);
    const auto [at, is_new] = by_scaling.try_emplace(scaling, run);
    RunRecord& scaled = at->second;
    if (is_new) {
      // What was trained is the run's, and shown there.
      scaled.label = fmt::format("{}, {}", run.label.value_or(run.encoding), scaling);
      scaled.evaluated_with = scaling;
      scaled.training.clear();
      scaled.validation.clear();
      scaled.memory_bytes.reset();
      scaled.evaluation.reset();
      scaled.further.clear();
      scaled.gate.reset();
    }
    if (evaluation.protocol == "windows") {
      scaled.evaluation = std::move(evaluation);
    } else {
      scaled.further.insert_or_assign(evaluation.protocol, std::move(evaluation));
    }
  }
  std::vector<RunRecord> runs;
  for (auto& [scaling, scaled] : by_scaling) {
    runs.push_back(std::move(scaled));
  }
  return runs;
}

bool is_experiment(const std::filesystem::path& folder) {
  return std::filesystem::exists(folder / "experiment.json");
}

RunCollection load_runs(const std::vector<std::filesystem::path>& folders) {
  RunCollection collection;
  const auto add = [&](const std::filesystem::path& folder) {
    const bool known =
        std::any_of(collection.runs.begin(), collection.runs.end(), [&](const RunRecord& run) {
          std::error_code error;
          return std::filesystem::equivalent(run.folder, folder, error);
        });
    if (!known) {
      collection.runs.push_back(load_run(folder));
      for (RunRecord& scaled : load_scaled(RunRecord(collection.runs.back()))) {
        collection.runs.push_back(std::move(scaled));
      }
    }
  };
  for (const std::filesystem::path& folder : folders) {
    if (!is_experiment(folder)) {
      add(folder);
      continue;
    }
    const std::filesystem::path file = folder / "experiment.json";
    const std::size_t before = collection.runs.size();
    read_json(file, "run the experiment again", [&](const Json& json) {
      collection.title = collection.title.empty() ? json.value("title", "") : collection.title;
      for (const auto& name : json.at("runs").get<std::vector<std::string>>()) {
        if (was_begun(folder / name)) {
          add(folder / name);
        } else {
          collection.not_begun.push_back(folder / name);
        }
      }
    });
    check<FileError>(collection.runs.size() > before,
                     "{} names no run that was begun in {}; run the experiment first",
                     file.string(), folder.string());
  }
  return collection;
}

}  // namespace carope
