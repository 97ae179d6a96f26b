#include "generate/sampler.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/error.h"

namespace carope {
namespace {

constexpr std::uint64_t kStream = 0x73616D706C65;  // apart from what else a seed decides

}  // namespace

Sampler::Sampler(const SamplerConfig& config, std::vector<TokenId> allowed)
    : config_(config), allowed_(std::move(allowed)), random_(config.seed, kStream) {
  check<ConfigError>(std::isfinite(config.temperature) && config.temperature >= 0.0,
                     "temperature = {} is not possible; give 0 for always the most likely token, "
                     "or more for more variety",
                     config.temperature);
  check<ConfigError>(config.top_k >= 0,
                     "top-k = {} is not possible; give how many of the most likely tokens to "
                     "choose from, or 0 for all",
                     config.top_k);
  check<ConfigError>(config.top_p > 0.0 && config.top_p <= 1.0,
                     "top-p = {} is not possible; give a probability above 0, up to 1 for all "
                     "tokens",
                     config.top_p);
  check<ConfigError>(!allowed_.empty(), "there is no token to choose from");
}

TokenId Sampler::pick(std::span<const float> logits, std::int64_t index) {
  candidates_.clear();
  for (const TokenId id : allowed_) {
    check<ShapeError>(id < logits.size(), "token {} is not among the {} that have logits", id,
                      logits.size());
    check<Error>(std::isfinite(logits[id]),
                 "the logit of token {} at place {} is {}: the model's weights are broken; use an "
                 "earlier checkpoint",
                 id, index, logits[id]);
    candidates_.push_back({0.0, logits[id], id});
  }
  const Candidate best = *std::min_element(candidates_.begin(), candidates_.end(), more_likely);
  if (config_.temperature == 0.0) {
    return best.id;
  }
  keep_most_likely();
  for (Candidate& candidate : candidates_) {
    const double behind = static_cast<double>(candidate.logit) - best.logit;
    candidate.weight = std::exp(behind / config_.temperature);
  }
  keep_nucleus();
  double left = random_.uniform(static_cast<std::uint64_t>(index)) * total_weight();
  for (const Candidate& candidate : candidates_) {
    left -= candidate.weight;
    if (left < 0.0) {
      return candidate.id;
    }
  }
  return best.id;  // rounding has left a little of the total
}

void Sampler::keep_most_likely() {
  if (config_.top_k == 0 || config_.top_k >= static_cast<std::int64_t>(candidates_.size())) {
    return;
  }
  const auto end = candidates_.begin() + config_.top_k;
  std::partial_sort(candidates_.begin(), end, candidates_.end(), more_likely);
  candidates_.erase(end, candidates_.end());
}

void Sampler::keep_nucleus() {
  if (config_.top_p == 1.0) {
    return;
  }
  // A heap gives the most likely one by one, so what is cut off need not be sorted.
  const auto less_likely = [](const Candidate& a, const Candidate& b) { return more_likely(b, a); };
  double wanted = config_.top_p * total_weight();
  std::make_heap(candidates_.begin(), candidates_.end(), less_likely);
  auto kept = candidates_.end();
  while (kept != candidates_.begin() && wanted > 0.0) {
    std::pop_heap(candidates_.begin(), kept, less_likely);
    wanted -= (--kept)->weight;
  }
  candidates_.erase(candidates_.begin(), kept);
}

double Sampler::total_weight() const {
  double total = 0.0;
  for (const Candidate& candidate : candidates_) {
    total += candidate.weight;
  }
  return total;
}

}  // namespace carope
