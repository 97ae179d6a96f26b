#include "generate/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>

#include "core/error.h"
#include "ops/simd_cpu.h"

namespace carope {
namespace {

constexpr std::uint64_t kStream = 0x73616D706C65;  // apart from what else a seed decides
constexpr std::size_t kBlock = 64;                 // values that are looked at together

/// The highest of some values; NaN if any is not finite.
float highest_of(std::span<const float> values) {
  float highest = values.front();
  float zero = 0.0F;  // but for x - x of what is not finite
#pragma omp simd reduction(max : highest) reduction(+ : zero)
  for (std::size_t i = 0; i < values.size(); ++i) {
    highest = values[i] > highest ? values[i] : highest;
    zero += values[i] - values[i];
  }
  return highest + zero;
}

/// Calls visit(begin, block) for each block of some values.
template <class T, class Visit>
void for_each_block(std::span<T> values, const Visit& visit) {
  for (std::size_t begin = 0; begin < values.size(); begin += kBlock) {
    visit(begin, values.subspan(begin, std::min(kBlock, values.size() - begin)));
  }
}

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

std::optional<TokenChoice> Sampler::choice() const {
  const bool of_all = config_.top_p == 1.0 && !keeps_few();
  if ((config_.temperature > 0.0 && !of_all) || !is_range()) {
    return std::nullopt;
  }
  return TokenChoice{.first = static_cast<std::int64_t>(allowed_.front()),
                     .count = static_cast<std::int64_t>(allowed_.size()),
                     .temperature = config_.temperature};
}

TokenId Sampler::pick(std::span<const float> logits, std::int64_t index) {
  const std::span<const float> values = allowed_values(logits);
  heights_.clear();
  for_each_block(values, [&](std::size_t, std::span<const float> block) {
    heights_.push_back(highest_of(block));
  });
  const float highest = highest_of(heights_);
  if (!std::isfinite(highest)) {
    refuse_broken(values, index);
  }
  const auto peak = std::find(heights_.begin(), heights_.end(), highest) - heights_.begin();
  const auto best =
      std::find(values.begin() + peak * std::ptrdiff_t{kBlock}, values.end(), highest);
  const TokenId best_id = allowed_[static_cast<std::size_t>(best - values.begin())];
  if (config_.temperature == 0.0) {
    return best_id;
  }
  double left = uniform(index);
  const bool few = keeps_few();
  if (few) {
    keep_most_likely(values);
    for (Candidate& candidate : candidates_) {
      const double behind = static_cast<double>(candidate.logit) - highest;
      candidate.weight = std::exp(behind / config_.temperature);
    }
  } else if (config_.top_p == 1.0) {
    sum_blocks(values, highest);
    return pick_of_all(values, highest, left);
  }
  if (config_.top_p < 1.0) {
    keep_nucleus(few ? total_weight() : keep_likely(values, highest));
  }
  left *= total_weight();
  for (const Candidate& candidate : candidates_) {
    left -= candidate.weight;
    if (left < 0.0) {
      return candidate.id;
    }
  }
  return best_id;  // rounding has left a little of the total
}

std::span<const float> Sampler::allowed_values(std::span<const float> logits) {
  check<ShapeError>(allowed_.back() < logits.size(),
                    "token {} is not among the {} that have logits", allowed_.back(),
                    logits.size());
  if (is_range()) {
    return logits.subspan(allowed_.front(), allowed_.size());
  }
  values_.resize(allowed_.size());
  std::transform(allowed_.begin(), allowed_.end(), values_.begin(),
                 [&](TokenId id) { return logits[id]; });
  return values_;
}

void Sampler::refuse(TokenId token, std::int64_t index, float logit) {
  throw Error(
      fmt::format("the logit of token {} at place {} is {}: the model's weights are broken; use an "
                  "earlier checkpoint",
                  token, index, logit));
}

void Sampler::refuse_broken(std::span<const float> values, std::int64_t index) const {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i])) {
      refuse(allowed_[i], index, values[i]);
    }
  }
}

void Sampler::keep_most_likely(std::span<const float> values) {
  // Every one of the k highest of all is as high as the lowest of the k highest blocks.
  const auto k = static_cast<std::size_t>(config_.top_k);
  float lowest = -std::numeric_limits<float>::infinity();
  if (k <= heights_.size()) {
    ranked_ = heights_;
    const auto last = ranked_.begin() + config_.top_k - 1;
    std::nth_element(ranked_.begin(), last, ranked_.end(), std::greater<>());
    lowest = *last;
  }
  candidates_.clear();
  for_each_block(values, [&](std::size_t begin, std::span<const float> block) {
    if (heights_[begin / kBlock] < lowest) {
      return;
    }
    for (std::size_t i = 0; i < block.size(); ++i) {
      if (block[i] >= lowest) {
        candidates_.push_back({0.0, block[i], allowed_[begin + i]});
      }
    }
  });
  const auto end = candidates_.begin() + config_.top_k;
  std::partial_sort(candidates_.begin(), end, candidates_.end(), more_likely);
  candidates_.erase(end, candidates_.end());
}

void Sampler::weigh(std::span<const float> values, float highest, double* weights) const {
#pragma omp simd
  for (std::size_t i = 0; i < values.size(); ++i) {
    weights[i] = cpu::exp_f64((static_cast<double>(values[i]) - highest) / config_.temperature);
  }
}

void Sampler::sum_blocks(std::span<const float> values, float highest) {
  sums_.clear();
  std::array<double, kBlock> weights{};
  for_each_block(values, [&](std::size_t, std::span<const float> block) {
    weigh(block, highest, weights.data());
    double sum = 0.0;
#pragma omp simd reduction(+ : sum)
    for (std::size_t i = 0; i < block.size(); ++i) {
      sum += weights[i];
    }
    sums_.push_back(sum);
  });
}

TokenId Sampler::pick_of_all(std::span<const float> values, float highest, double uniform) const {
  double left = uniform * std::accumulate(sums_.begin(), sums_.end(), 0.0);
  std::size_t block = 0;
  while (block + 1 < sums_.size() && left >= sums_[block]) {
    left -= sums_[block++];
  }
  // Rounding may leave a little of a block's sum for the next.
  std::array<double, kBlock> weights{};
  for (std::size_t begin = block * kBlock; begin < values.size(); begin += kBlock) {
    const auto rest = values.subspan(begin, std::min(kBlock, values.size() - begin));
    weigh(rest, highest, weights.data());
    for (std::size_t i = 0; i < rest.size(); ++i) {
      left -= weights[i];
      if (left < 0.0) {
        return allowed_[begin + i];
      }
    }
  }
  // Rounding has left a little of the total: the last id that has weight.
  std::size_t last = values.size() - 1;
  while (std::exp((static_cast<double>(values[last]) - highest) / config_.temperature) == 0.0) {
    --last;
  }
  return allowed_[last];
}

double Sampler::keep_likely(std::span<const float> values, float highest) {
  // Weights by their magnitude: whole classes are kept until they hold as much as is wanted.
  constexpr std::size_t kClasses = 64;
  constexpr double kClassesANat = 4.0;
  std::array<double, kClasses> held{};
  const auto class_of = [&](float value) {
    const double nats = (static_cast<double>(highest) - value) / config_.temperature;
    return static_cast<std::size_t>(std::min(nats * kClassesANat, kClasses - 1.0));
  };
  weights_.resize(values.size());
  weigh(values, highest, weights_.data());
  double total = 0.0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    held[class_of(values[i])] += weights_[i];
  }
  for (const double weight : held) {
    total += weight;
  }
  std::size_t last = 0;
  for (double sum = held[0]; last + 1 < kClasses && sum <= config_.top_p * total;) {
    sum += held[++last];
  }
  candidates_.clear();
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (class_of(values[i]) <= last) {
      candidates_.push_back({weights_[i], values[i], allowed_[i]});
    }
  }
  return total;
}

void Sampler::keep_nucleus(double total) {
  // A heap gives the most likely one by one, so what is cut off need not be sorted.
  const auto less_likely = [](const Candidate& a, const Candidate& b) { return more_likely(b, a); };
  double wanted = config_.top_p * total;
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
