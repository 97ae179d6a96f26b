#include "report/results.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

namespace carope {
namespace {

using Json = nlohmann::ordered_json;

/// What must be equal in two runs for a mean over them to mean something.
std::string configuration_but_seed(const RunRecord& run) {
  Settings settings = run.settings;
  settings["train"].erase("seed");
  return to_toml(settings);
}

std::string folder_name(const RunRecord& run) {
  const std::filesystem::path folder = run.folder.lexically_normal();
  return (folder.has_filename() ? folder : folder.parent_path()).filename().string();
}

/// The encodings whose unlabelled runs are not seeds of one configuration.
std::set<std::string> ambiguous_encodings(const std::vector<RunRecord>& runs) {
  std::map<std::string, std::string> configurations;
  std::map<std::string, std::set<std::int64_t>> seeds;
  std::set<std::string> ambiguous;
  for (const RunRecord& run : runs) {
    if (run.label) {
      configurations.emplace(*run.label, "");  // a name that is taken
    }
  }
  for (const RunRecord& run : runs) {
    if (run.label) {
      continue;
    }
    const std::string configuration = configuration_but_seed(run);
    const auto [first, added] = configurations.emplace(run.encoding, configuration);
    const bool new_seed = seeds[run.encoding].insert(run.seed).second;
    if (first->second != configuration || !new_seed) {
      ambiguous.insert(run.encoding);
    }
  }
  return ambiguous;
}

std::string label_of(const RunRecord& run, const std::vector<RunRecord>& runs,
                     const std::set<std::string>& ambiguous) {
  if (run.label) {
    return *run.label;
  }
  if (!ambiguous.contains(run.encoding)) {
    return run.encoding;
  }
  const std::string name = folder_name(run);
  const auto namesakes = std::count_if(
      runs.begin(), runs.end(), [&](const RunRecord& other) { return folder_name(other) == name; });
  return namesakes > 1 ? run.folder.string() : name;
}

/// The encodings that everybody compares have colours of their own; others share the rest.
void colour(std::vector<EncodingRuns>& encodings) {
  static const std::vector<std::string> kKnown{"carope",     "rope",  "learnable",
                                               "sinusoidal", "alibi", "none"};
  const int known = static_cast<int>(kKnown.size());
  int others = 0;
  for (EncodingRuns& encoding : encodings) {
    const auto found = std::find(kKnown.begin(), kKnown.end(), encoding.label);
    encoding.slot = found != kKnown.end() ? static_cast<int>(found - kKnown.begin())
                                          : known + others++ % (kSlots - known);
  }
}

template <class Value>
std::optional<Summary> summarize_runs(const EncodingRuns& encoding, const Value& value) {
  std::vector<double> values;
  for (const RunRecord* run : encoding.runs) {
    if (const std::optional<double> found = value(*run)) {
      values.push_back(*found);
    }
  }
  return summarize(values);
}

std::span<const LengthResult> results_of(const RunRecord& run) {
  return run.evaluation ? std::span(run.evaluation->lengths) : std::span<const LengthResult>();
}

Json or_null(const std::optional<double>& value) { return value ? Json(*value) : Json(); }

}  // namespace

std::vector<EncodingRuns> group_runs(const std::vector<RunRecord>& runs) {
  const std::set<std::string> ambiguous = ambiguous_encodings(runs);
  std::vector<EncodingRuns> encodings;
  for (const RunRecord& run : runs) {
    const std::string label = label_of(run, runs, ambiguous);
    auto found = std::find_if(encodings.begin(), encodings.end(),
                              [&](const EncodingRuns& known) { return known.label == label; });
    if (found == encodings.end()) {
      found = encodings.insert(found, {.label = label, .slot = 0, .runs = {}});
    }
    found->runs.push_back(&run);
  }
  std::stable_sort(encodings.begin(), encodings.end(), [](const auto& a, const auto& b) {
    return a.runs.front()->order < b.runs.front()->order;
  });
  colour(encodings);
  return encodings;
}

std::optional<Summary> summarize(std::span<const double> values) {
  if (values.empty()) {
    return std::nullopt;
  }
  const auto count = static_cast<double>(values.size());
  double sum = 0.0;
  for (const double value : values) {
    sum += value;
  }
  const double mean = sum / count;
  double squares = 0.0;
  for (const double value : values) {
    squares += (value - mean) * (value - mean);
  }
  return Summary{mean, values.size() > 1 ? std::sqrt(squares / (count - 1.0)) : 0.0, values.size()};
}

std::vector<std::int64_t> evaluated_lengths(const std::vector<EncodingRuns>& encodings) {
  std::set<std::int64_t> lengths;
  for (const EncodingRuns& encoding : encodings) {
    for (const RunRecord* run : encoding.runs) {
      for (const LengthResult& result : results_of(*run)) {
        lengths.insert(result.length);
      }
    }
  }
  return {lengths.begin(), lengths.end()};
}

const LengthResult* result_at(const RunRecord& run, std::int64_t length) {
  for (const LengthResult& result : results_of(run)) {
    if (result.length == length) {
      return &result;
    }
  }
  return nullptr;
}

std::optional<Summary> perplexity_at(const EncodingRuns& encoding, std::int64_t length) {
  return summarize_runs(encoding, [&](const RunRecord& run) {
    const LengthResult* result = result_at(run, length);
    return result == nullptr ? std::nullopt : result->perplexity;
  });
}

std::optional<Extent> interval_at(const EncodingRuns& encoding, std::int64_t length) {
  std::optional<Extent> widest;
  for (const RunRecord* run : encoding.runs) {
    const LengthResult* result = result_at(*run, length);
    if (result != nullptr && result->low && result->high) {
      widest = widest ? Extent{std::min(widest->low, *result->low),
                               std::max(widest->high, *result->high)}
                      : Extent{*result->low, *result->high};
    }
  }
  return widest;
}

std::optional<double> speed_of(const RunRecord& run) {
  std::vector<double> speeds;
  for (const TrainingPoint& point : run.training) {
    if (std::isfinite(point.tokens_per_second)) {
      speeds.push_back(point.tokens_per_second);
    }
  }
  if (speeds.empty()) {
    return std::nullopt;
  }
  std::sort(speeds.begin(), speeds.end());
  const std::size_t middle = speeds.size() / 2;
  return speeds.size() % 2 == 1 ? speeds[middle] : 0.5 * (speeds[middle - 1] + speeds[middle]);
}

std::optional<Summary> speed_of(const EncodingRuns& encoding) {
  return summarize_runs(encoding, [](const RunRecord& run) { return speed_of(run); });
}

std::optional<double> validation_loss(const RunRecord& run) {
  const bool known = !run.validation.empty() && std::isfinite(run.validation.back().loss);
  return known ? std::optional(run.validation.back().loss) : std::nullopt;
}

std::string results_json(const std::vector<EncodingRuns>& encodings) {
  Json runs = Json::array();
  for (const EncodingRuns& encoding : encodings) {
    for (const RunRecord* run : encoding.runs) {
      Json perplexity = Json::object();
      Json interval = Json::object();
      for (const LengthResult& result : results_of(*run)) {
        const std::string length = std::to_string(result.length);
        perplexity[length] = or_null(result.perplexity);
        if (result.low && result.high) {
          interval[length] = Json::array({*result.low, *result.high});
        }
      }
      runs.push_back({{"encoding", encoding.label},
                      {"seed", run->seed},
                      {"train_length", run->length},
                      {"perplexity", perplexity},
                      {"tokens_per_second", or_null(speed_of(*run))},
                      {"folder", folder_name(*run)},
                      {"validation_loss", or_null(validation_loss(*run))},
                      {"steps", run->steps},
                      {"training_tokens", run->training_tokens},
                      {"interval", interval}});
    }
  }
  return Json{{"runs", runs}}.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace carope
