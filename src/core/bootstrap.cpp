#include "core/bootstrap.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/error.h"
#include "core/random.h"

namespace carope {
namespace {

double mean_of(const LossSum& sum) {
  return sum.loss / static_cast<double>(std::max<std::int64_t>(sum.tokens, 1));
}

/// The mean of one draw of as many units as there are.
double resampled_mean(std::span<const LossSum> units, const Philox& random) {
  LossSum sum;
  std::size_t drawn = 0;
  for (std::uint64_t counter = 0; drawn < units.size(); ++counter) {
    for (const std::uint32_t word : random(counter)) {
      if (drawn++ < units.size()) {
        const LossSum& unit = units[(std::uint64_t{word} * units.size()) >> 32];
        sum.loss += unit.loss;
        sum.tokens += unit.tokens;
      }
    }
  }
  return mean_of(sum);
}

/// Of sorted values, with linear interpolation between neighbours.
double quantile(const std::vector<double>& sorted, double part) {
  const double place = part * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return std::lerp(sorted[below], sorted[above], place - static_cast<double>(below));
}

}  // namespace

double mean_loss(std::span<const LossSum> units) {
  LossSum sum;
  for (const LossSum& unit : units) {
    sum.loss += unit.loss;
    sum.tokens += unit.tokens;
  }
  return mean_of(sum);
}

Interval mean_interval(std::span<const LossSum> units, const Resampling& resampling) {
  constexpr double kOutside = 0.05;
  check<ConfigError>(resampling.resamples >= 1, "{} resamples are not possible; give 1 or more",
                     resampling.resamples);
  std::vector<double> means;
  for (int i = 0; i < resampling.resamples; ++i) {
    means.push_back(resampled_mean(units, Philox(resampling.seed, static_cast<std::uint64_t>(i))));
  }
  std::sort(means.begin(), means.end());
  return {quantile(means, kOutside / 2.0), quantile(means, 1.0 - kOutside / 2.0)};
}

Difference paired_difference(std::span<const LossSum> a, std::span<const LossSum> b,
                             const Resampling& resampling) {
  const bool same = std::equal(a.begin(), a.end(), b.begin(), b.end(),
                               [](const auto& x, const auto& y) { return x.tokens == y.tokens; });
  check<Error>(same,
               "{} and {} units of other sizes cannot be paired; score both models on the same "
               "tokens and lengths",
               a.size(), b.size());
  // With the same targets in both, the difference of two means is the mean of the differences.
  std::vector<LossSum> differences(a.begin(), a.end());
  for (std::size_t i = 0; i < differences.size(); ++i) {
    differences[i].loss = b[i].loss - a[i].loss;
  }
  return {mean_loss(differences), mean_interval(differences, resampling)};
}

}  // namespace carope
