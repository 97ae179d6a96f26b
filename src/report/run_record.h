#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/bootstrap.h"
#include "core/settings.h"

namespace carope {

/// One step of training. A loss that was no number is NaN.
struct TrainingPoint {
  std::int64_t tokens;
  double loss;
  double tokens_per_second;
};

struct ValidationPoint {
  std::int64_t tokens;
  double loss;
};

/// The mean loss over the tokens at one place of their windows.
struct PositionPoint {
  std::int64_t position;
  std::int64_t tokens;
  double loss;
};

/// What an evaluation found at one length, or why it found nothing.
struct LengthResult {
  std::int64_t length;
  std::optional<double> perplexity, low, high;
  std::string reason;
  std::vector<PositionPoint> positions;
  std::optional<double> loss;
  std::vector<LossSum> units;  // windows or documents, where the file has them
};

/// evaluation.json, or that of another protocol
struct EvaluationRecord {
  std::string protocol;
  std::string rope_scaling;  // e.g. "yarn:4", where the model was scaled for the evaluation
  std::int64_t step;         // of the checkpoint
  std::int64_t tokens;
  std::vector<LengthResult> lengths;
};

/// The mean frequency of a token's occurrences.
struct WordGate {
  std::string word;
  std::int64_t count;
  double mean;
};

/// The frequencies f that one head's gate gave to the tokens of an evaluation.
struct HeadGate {
  std::int64_t layer, head;
  std::vector<double> quantiles;  // 5 %, 25 %, 50 %, 75 % and 95 %
  std::vector<double> histogram;  // counts over f in (0, 1)
  double base;                    // of the RoPE that turns as fast as the geometric mean of f
  double mean, deviation;
  double token_share;  // of the variance that the token alone explains
  std::vector<WordGate> slowest, fastest;
};

/// gate.json
struct GateRecord {
  std::int64_t layers, heads, pairs, tokens;
  std::vector<HeadGate> gates;
  std::vector<std::string> passage;
  std::vector<std::vector<std::vector<double>>> frequencies;  // [layer][head][token of the passage]
};

/// Everything the report needs of a run, as its folder has it.
struct RunRecord {
  static constexpr std::int64_t kLast = std::numeric_limits<std::int64_t>::max();

  std::filesystem::path folder;
  std::filesystem::path experiment;  // the folder of the experiment it is part of, or empty
  std::optional<std::string> label;  // label.json
  std::int64_t order = kLast;        // among the labels of a report
  std::string encoding, version, data_sha256, device, precision;
  std::string evaluated_with;  // the RoPE scaling of the evaluation, where it is not the run's
  std::optional<double> memory_bytes;
  std::int64_t seed = 0, layers = 0, heads = 0, width = 0, vocabulary = 0, length = 0;
  Settings settings;
  std::int64_t steps = 0, training_tokens = 0;  // done
  std::vector<TrainingPoint> training;
  std::vector<ValidationPoint> validation;
  std::optional<EvaluationRecord> evaluation;
  std::map<std::string, EvaluationRecord> further;  // by the protocol, other than evaluation.json's
  std::optional<GateRecord> gate;
};

/// What a folder is called, without what it lies in.
std::string folder_name(const std::filesystem::path& folder);

/// Reads a run's folder. Throws a FileError that names the file, the place and the remedy.
RunRecord load_run(const std::filesystem::path& folder);

/// A record for each RoPE scaling that the run was evaluated with, labelled e.g. "rope, yarn:4",
/// with its step and its
/// tokens where they are not those of the run's own evaluation.
std::vector<RunRecord> load_scaled(const RunRecord& run);

/// Several runs, and what they are called together.
struct RunCollection {
  std::string title;
  std::vector<RunRecord> runs;
  std::vector<std::filesystem::path> not_begun;  // that an experiment names
};

/// Whether a folder holds runs, by experiment.json.
bool is_experiment(const std::filesystem::path& folder);

/// Reads folders of runs and of experiments. An experiment gives its title, and those of its runs
/// that were begun: one that lost a file is an error, not left out.
RunCollection load_runs(const std::vector<std::filesystem::path>& folders);

}  // namespace carope
