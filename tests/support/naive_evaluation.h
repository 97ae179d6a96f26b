#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "eval/perplexity.h"
#include "support/tokens.h"

// Perplexity the simplest way: what becomes of each target alone, in windows that are run whole.
namespace carope::test {

inline constexpr TokenId kEndOfText = 0;

/// Tokens of 50 ids, with an end of text now and then.
inline std::vector<TokenId> random_tokens(std::int64_t count) {
  const Philox random(5, 1);
  std::vector<TokenId> tokens;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto n = static_cast<std::uint64_t>(i);
    const bool begins = random.below(9, 2 * n) == 0;
    tokens.push_back(begins ? kEndOfText : static_cast<TokenId>(random.below(50, 2 * n + 1)));
  }
  return tokens;
}

/// A target as a protocol counts it: token `begin + position + 1` of the stream.
struct Counted {
  std::int64_t begin, length;  // of the window
  std::int64_t position;
};

/// What a protocol makes of target i of a stretch, worked out for that target alone.
inline std::optional<Counted> count_target(const EvalConfig& config, std::int64_t length,
                                           std::int64_t stretch, std::int64_t i) {
  if (config.protocol == Protocol::kSliding) {
    const std::int64_t stride = config.stride > 0 ? config.stride : length / 2;
    const std::int64_t moves = i < length ? 0 : (i - length) / stride + 1;
    const std::int64_t begin = std::min(moves * stride, stretch - length);
    return Counted{begin, length, i - begin};
  }
  const std::int64_t begin = i / length * length;
  const Counted counted{begin, std::min(length, stretch - begin), i - begin};
  const bool late = counted.length == length && counted.position >= length - config.last;
  return config.protocol == Protocol::kWindows || late ? std::optional(counted) : std::nullopt;
}

/// Losses of windows, each run whole and alone.
class Naive {
 public:
  Naive(const Gpt& model, std::vector<TokenId> tokens, bool documents = false)
      : model_(model), tokens_(std::move(tokens)), documents_(documents) {}

  double loss(const Counted& target) {
    auto& losses = losses_[{target.begin, target.length}];
    if (losses.empty()) {
      losses = run(target.begin, target.length);
    }
    return losses[static_cast<std::size_t>(target.position)];
  }

  /// End-of-text tokens up to and with token i.
  std::int64_t document_of(std::int64_t i) const {
    return std::count(tokens_.begin(), tokens_.begin() + i + 1, kEndOfText);
  }

 private:
  std::vector<float> run(std::int64_t begin, std::int64_t length) {
    std::vector<std::int32_t> inputs, targets, starts;
    for (std::int64_t t = 0; t < length; ++t) {
      inputs.push_back(tokens_[static_cast<std::size_t>(begin + t)]);
      targets.push_back(tokens_[static_cast<std::size_t>(begin + t + 1)]);
      starts.push_back(inputs.back() == kEndOfText ? static_cast<std::int32_t>(t)
                       : t > 0                     ? starts.back()
                                                   : 0);
    }
    Batch batch{.seq = {.batch = 1, .length = length},
                .tokens = Tensor::of(inputs, {1, length}),
                .targets = Tensor::of(targets, {1, length})};
    if (documents_) {
      batch.seq.document_start = Tensor::of(starts, {1, length});
    }
    Activations a = model_.plan(
        {.batch = 1, .length = length, .purpose = Purpose::kEvaluation, .documents = documents_});
    model_.loss(ctx_, batch, a);
    return {a.losses.f32(), a.losses.f32() + a.losses.size()};
  }

  const Gpt& model_;
  std::vector<TokenId> tokens_;
  bool documents_;
  Context ctx_ = Context::cpu(1);
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<float>> losses_;
};

}  // namespace carope::test
