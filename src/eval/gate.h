#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/context.h"
#include "data/loader/loader.h"
#include "data/tokenizer/tokenizer.h"
#include "model/gpt.h"

namespace carope {

/// What a head gave to the occurrences of one token.
struct WordFrequency {
  std::string word{};
  std::int64_t count = 0;
  double mean = 0.0;
};

/// The frequencies f that one head of a layer gave to the tokens of a text.
struct HeadFrequencies {
  static constexpr int kBins = 40;

  std::int64_t layer = 0;
  std::int64_t head = 0;
  double mean = 0.0;
  double deviation = 0.0;
  double lowest = 0.0;
  double highest = 0.0;
  std::array<double, 5> quantiles{};         // 5 %, 25 %, 50 %, 75 %, 95 %
  std::array<std::int64_t, kBins> counts{};  // over f in (0, 1)
  double base = 0.0;                         // of RoPE with the geometric mean of f: f^-pairs

  // Of the tokens that occur often enough for a mean.
  std::vector<WordFrequency> slowest{}, fastest{};  // from the outermost inwards
  double token_share = 0.0;  // of the variance of f that the token alone explains
};

/// What a model's gate does to a text.
struct GateStatistics {
  std::int64_t layers = 0;
  std::int64_t heads = 0;
  std::int64_t pairs = 0;
  std::int64_t tokens = 0;
  std::vector<HeadFrequencies> gates{};  // by layer, then head

  // A passage, for a reader to see which words turn the clock.
  std::vector<std::string> passage{};
  std::vector<std::vector<std::vector<double>>> frequencies{};  // [layer][head][token of passage]
};

/// The base of the RoPE whose first two pairs turn as 1 and f do.
double effective_base(double frequency, std::int64_t pairs);

/// Looks at the gate over about `tokens` tokens of the loader, in windows of its length; nothing if
/// the model's encoding has no gate. The passage and the words are in the words of the tokenizer,
/// or token numbers where there is none.
std::optional<GateStatistics> measure_gate(Context& ctx, const Gpt& model, const Loader& loader,
                                           std::int64_t tokens, const Tokenizer* tokenizer);

/// As RUN/gate.json has it.
std::string to_json(const GateStatistics& gate);

}  // namespace carope
