#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/random.h"
#include "data/token.h"

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

 private:
  struct Candidate {
    double weight;  // its probability, but for a factor that all have
    float logit;
    TokenId id;
  };
  static bool more_likely(const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
  }

  void keep_most_likely();
  /// Leaves the fewest that have top_p of all weight.
  void keep_nucleus();
  double total_weight() const;

  const SamplerConfig config_;
  const std::vector<TokenId> allowed_;
  const Philox random_;
  std::vector<Candidate> candidates_;
};

}  // namespace carope
