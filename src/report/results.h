#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "report/run_record.h"

namespace carope {

/// The runs that differ in nothing but their seeds, under one name.
struct EncodingRuns {
  std::string label;
  std::string name;  // the label without what tells configurations of one name apart
  int slot;          // of the palette, the same for a label in every figure
  std::vector<const RunRecord*> runs;
  std::vector<const RunRecord*> copies;  // of runs of this name, which count for nothing
};

/// How many colours and marks the palette has.
inline constexpr int kSlots = 12;

/// Groups runs by label or, where they have none, by encoding, in the order their labels ask for.
/// Runs share a label only as different seeds of one configuration on the same data; others are
/// told apart by their folders, as in "carope (other_experiment)".
std::vector<EncodingRuns> group_runs(const std::vector<RunRecord>& runs);

/// Mean and standard deviation over seeds.
struct Summary {
  double mean;
  double deviation;  // of the sample; 0 for a single value
  std::size_t count;
};

std::optional<Summary> summarize(std::span<const double> values);

// Evaluations are those of evaluation.json, or those by a further protocol where one is named.

/// All lengths that some run was evaluated at, ascending.
std::vector<std::int64_t> evaluated_lengths(const std::vector<EncodingRuns>& encodings,
                                            const std::string& protocol = "");

/// What a run's evaluation has for a length; null if it was not evaluated there.
const LengthResult* result_at(const RunRecord& run, std::int64_t length,
                              const std::string& protocol = "");

std::optional<Summary> perplexity_at(const EncodingRuns& encoding, std::int64_t length,
                                     const std::string& protocol = "");

/// The widest interval of an encoding's perplexity at a length, over its seeds.
struct Extent {
  double low, high;
};
std::optional<Extent> interval_at(const EncodingRuns& encoding, std::int64_t length);

/// How much higher one encoding's loss is than another's, seed by seed on the same text.
struct EncodingDifference {
  Summary seeds;                 // of the differences
  std::optional<Interval> text;  // 95 %, of their mean, by drawing the text again
};
/// Nothing where no seed has both, or only on other text: other data, or another part of it.
std::optional<EncodingDifference> difference_at(const EncodingRuns& encoding,
                                                const EncodingRuns& reference, std::int64_t length,
                                                const std::string& protocol = "");

/// Tokens per second of a run: the median over its steps.
std::optional<double> speed_of(const RunRecord& run);
std::optional<Summary> speed_of(const EncodingRuns& encoding);
/// An encoding's speed as a part of another's: the median over the seeds that both have, so that
/// one run on a faster machine does not pass for a faster encoding.
std::optional<double> relative_speed(const EncodingRuns& encoding, const EncodingRuns& reference);

/// The last validation loss, if it is a number.
std::optional<double> validation_loss(const RunRecord& run);

/// The heads that tell tokens apart most: those whose f varies most by the token, so many at most.
/// A gate that sees no token has none.
std::vector<const HeadGate*> telling_heads(const GateRecord& gate, std::size_t most);

/// results.json: one object a run.
std::string results_json(const std::vector<EncodingRuns>& encodings);

}  // namespace carope
