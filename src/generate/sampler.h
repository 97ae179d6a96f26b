#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/random.h"
#include "data/token.h"
#include "ops/pick_token.h"

namespace carope {

/// How the next token is chosen.
struct SamplerConfig {
  double temperature = 1.0;  // logits are divided by it; 0: always the most likely token
  std::int64_t top_k = 0;    // only the k most likely; 0: all
  double top_p = 1.0;        // of these, the fewest that together have this probability or more
  std::uint64_t seed = 1;
};

/// Picks tokens by their logits. Of equally likely ones the lower id ranks first.
class Sampler {
 public:
  /// Only `allowed` ids, in rising order, are ever picked. Throws a ConfigError that names the
  /// setting and what would be valid.
  Sampler(const SamplerConfig& config, std::vector<TokenId> allowed);

  /// The token at place `index` of a sequence, whose logits are given: a function of these, the
  /// seed and the index.
  TokenId pick(std::span<const float> logits, std::int64_t index);

  /// How pick_token() picks the same, with uniform(index) for the number that decides, up to the
  /// rounding of sums; none where it cannot.
  std::optional<TokenChoice> choice() const;
  double uniform(std::int64_t index) const {
    return random_.uniform(static_cast<std::uint64_t>(index));
  }
  /// Throws, as pick() does where a logit is not finite.
  [[noreturn]] static void refuse(TokenId token, std::int64_t index, float logit);

 private:
  struct Candidate {
    double weight;  // its probability, but for a factor that all have
    float logit;
    TokenId id;
  };
  static bool more_likely(const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
  }

  /// The logits of the allowed ids.
  std::span<const float> allowed_values(std::span<const float> logits);
  /// Says which value is not finite.
  void refuse_broken(std::span<const float> values, std::int64_t index) const;
  /// Makes the top_k most likely the candidates, without their weights.
  void keep_most_likely(std::span<const float> values);
  /// Gives some values their weights.
  void weigh(std::span<const float> values, float highest, double* weights) const;
  /// Fills sums_.
  void sum_blocks(std::span<const float> values, float highest);
  TokenId pick_of_all(std::span<const float> values, float highest, double uniform) const;
  /// Whether fewer than all allowed ids are left by top_k.
  bool keeps_few() const {
    return config_.top_k > 0 && config_.top_k < static_cast<std::int64_t>(allowed_.size());
  }
  /// Whether no id between the allowed ones is left out.
  bool is_range() const { return allowed_.back() - allowed_.front() + 1U == allowed_.size(); }
  /// Makes candidates of at least those that have top_p of all weight; returns the weight of all.
  double keep_likely(std::span<const float> values, float highest);
  /// Leaves the fewest candidates that have top_p of the total.
  void keep_nucleus(double total);
  double total_weight() const;

  const SamplerConfig config_;
  const std::vector<TokenId> allowed_;
  const Philox random_;
  std::vector<Candidate> candidates_;
  // Room that is kept from token to token.
  std::vector<float> values_;
  std::vector<float> heights_;  // the highest value of each block
  std::vector<float> ranked_;
  std::vector<double> weights_, sums_;
};

}  // namespace carope
