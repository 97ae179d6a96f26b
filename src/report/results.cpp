#include "report/results.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

namespace carope {
namespace {

using Json = nlohmann::ordered_json;

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

/// Null where a run was not evaluated so.
const EvaluationRecord* evaluation_of(const RunRecord& run, const std::string& protocol) {
  if (protocol.empty()) {
    return run.evaluation ? &*run.evaluation : nullptr;
  }
  const auto found = run.further.find(protocol);
  return found == run.further.end() ? nullptr : &found->second;
}

std::span<const LengthResult> results_of(const RunRecord& run, const std::string& protocol = "") {
  const EvaluationRecord* evaluation = evaluation_of(run, protocol);
  return evaluation == nullptr ? std::span<const LengthResult>() : std::span(evaluation->lengths);
}

std::optional<double> median(std::vector<double> values) {
  if (values.empty()) {
    return std::nullopt;
  }
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : 0.5 * (values[middle - 1] + values[middle]);
}

/// Whether two runs of one seed were evaluated on the same tokens.
bool are_comparable(const RunRecord& a, const RunRecord& b, const std::string& protocol) {
  const EvaluationRecord* ours = evaluation_of(a, protocol);
  const EvaluationRecord* theirs = evaluation_of(b, protocol);
  return a.seed == b.seed && a.data_sha256 == b.data_sha256 && ours != nullptr &&
         theirs != nullptr && ours->tokens == theirs->tokens;
}

/// Adds another seed's losses to those on the same text; what does not fit is none.
void add_units(std::vector<LossSum>& sums, const std::vector<LossSum>& units, bool first) {
  if (first) {
    sums = units;
    return;
  }
  if (sums.size() != units.size()) {
    sums.clear();
  }
  for (std::size_t i = 0; i < sums.size(); ++i) {
    sums[i].loss += units[i].loss;
    sums[i].tokens += units[i].tokens;
  }
}

Json or_null(const std::optional<double>& value) { return value ? Json(*value) : Json(); }

}  // namespace

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
  double distance = 0.0;
  for (const double value : values) {
    distance = std::hypot(distance, value - mean);  // whose square may not be a double
  }
  return Summary{mean, values.size() > 1 ? distance / std::sqrt(count - 1.0) : 0.0, values.size()};
}

std::vector<std::int64_t> evaluated_lengths(const std::vector<EncodingRuns>& encodings,
                                            const std::string& protocol) {
  std::set<std::int64_t> lengths;
  for (const EncodingRuns& encoding : encodings) {
    for (const RunRecord* run : encoding.runs) {
      for (const LengthResult& result : results_of(*run, protocol)) {
        lengths.insert(result.length);
      }
    }
  }
  return {lengths.begin(), lengths.end()};
}

const LengthResult* result_at(const RunRecord& run, std::int64_t length,
                              const std::string& protocol) {
  for (const LengthResult& result : results_of(run, protocol)) {
    if (result.length == length) {
      return &result;
    }
  }
  return nullptr;
}

std::optional<Summary> perplexity_at(const EncodingRuns& encoding, std::int64_t length,
                                     const std::string& protocol) {
  return summarize_runs(encoding, [&](const RunRecord& run) {
    const LengthResult* result = result_at(run, length, protocol);
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

std::optional<EncodingDifference> difference_at(const EncodingRuns& encoding,
                                                const EncodingRuns& reference, std::int64_t length,
                                                const std::string& protocol) {
  std::vector<double> differences;
  std::vector<LossSum> ours, theirs;
  for (const RunRecord* run : encoding.runs) {
    const auto other =
        std::find_if(reference.runs.begin(), reference.runs.end(),
                     [&](const RunRecord* each) { return are_comparable(*run, *each, protocol); });
    const LengthResult* a = result_at(*run, length, protocol);
    const LengthResult* b =
        other == reference.runs.end() ? nullptr : result_at(**other, length, protocol);
    if (a == nullptr || b == nullptr || !a->loss || !b->loss) {
      continue;
    }
    add_units(ours, a->units, differences.empty());
    add_units(theirs, b->units, differences.empty());
    differences.push_back(*a->loss - *b->loss);
  }
  const auto seeds = summarize(differences);
  if (!seeds) {
    return std::nullopt;
  }
  const auto same_text = [](const LossSum& a, const LossSum& b) { return a.tokens == b.tokens; };
  const bool paired = ours.size() > 1 && std::ranges::equal(ours, theirs, same_text);
  return EncodingDifference{
      *seeds, paired ? std::optional(paired_difference(theirs, ours, {}).interval) : std::nullopt};
}

std::optional<double> speed_of(const RunRecord& run) {
  std::vector<double> speeds;
  for (const TrainingPoint& point : run.training) {
    if (std::isfinite(point.tokens_per_second)) {
      speeds.push_back(point.tokens_per_second);
    }
  }
  return median(std::move(speeds));
}

std::optional<Summary> speed_of(const EncodingRuns& encoding) {
  return summarize_runs(encoding, [](const RunRecord& run) { return speed_of(run); });
}

std::optional<double> relative_speed(const EncodingRuns& encoding, const EncodingRuns& reference) {
  std::vector<double> ratios;
  for (const RunRecord* run : encoding.runs) {
    for (const RunRecord* other : reference.runs) {
      const auto ours = speed_of(*run), theirs = speed_of(*other);
      if (run->seed == other->seed && ours && theirs) {
        ratios.push_back(*ours / *theirs);
      }
    }
  }
  return median(std::move(ratios));
}

std::optional<double> validation_loss(const RunRecord& run) {
  const bool known = !run.validation.empty() && std::isfinite(run.validation.back().loss);
  return known ? std::optional(run.validation.back().loss) : std::nullopt;
}

std::vector<const HeadGate*> telling_heads(const GateRecord& gate, std::size_t most) {
  constexpr double kLeastDeviation = 0.0005;  // what less would be shown as none
  std::vector<const HeadGate*> heads;
  for (const HeadGate& head : gate.gates) {
    if (!head.slowest.empty() && head.deviation >= kLeastDeviation) {
      heads.push_back(&head);
    }
  }
  const std::size_t shown = std::min(most, heads.size());
  const auto by_token = [](const HeadGate* head) {
    const double variance = head->token_share * head->deviation * head->deviation;
    return std::isfinite(variance) ? variance : 0.0;
  };
  std::partial_sort(
      heads.begin(), heads.begin() + static_cast<std::ptrdiff_t>(shown), heads.end(),
      [&](const HeadGate* a, const HeadGate* b) { return by_token(a) > by_token(b); });
  heads.resize(shown);
  return heads;
}

std::string results_json(const std::vector<EncodingRuns>& encodings) {
  Json runs = Json::array();
  for (const EncodingRuns& encoding : encodings) {
    for (const RunRecord* run : encoding.runs) {
      Json perplexity = Json::object();
      Json interval = Json::object();
      Json reason = Json::object();
      for (const LengthResult& result : results_of(*run)) {
        const std::string length = std::to_string(result.length);
        perplexity[length] = or_null(result.perplexity);
        if (!result.perplexity) {
          reason[length] = result.reason;
        }
        if (result.low && result.high) {
          interval[length] = Json::array({*result.low, *result.high});
        }
      }
      Json further = Json::object();
      for (const auto& [protocol, evaluation] : run->further) {
        for (const LengthResult& result : evaluation.lengths) {
          further[protocol][std::to_string(result.length)] = or_null(result.perplexity);
        }
      }
      Json record{{"encoding", encoding.label},
                  {"seed", run->seed},
                  {"train_length", run->length},
                  {"perplexity", perplexity},
                  {"tokens_per_second", or_null(speed_of(*run))},
                  {"folder", folder_name(run->folder)},
                  {"validation_loss", or_null(validation_loss(*run))},
                  {"steps", run->steps},
                  {"training_tokens", run->training_tokens},
                  {"interval", interval},
                  {"reason", reason}};
      if (!further.empty()) {
        record["perplexity_by_protocol"] = further;
      }
      if (run->memory_bytes) {
        record["memory_bytes"] = *run->memory_bytes;
        record["device"] = run->device;
        record["precision"] = run->precision;
      }
      runs.push_back(std::move(record));
    }
  }
  return Json{{"runs", runs}}.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace carope
