#pragma once

#include <cstdint>
#include <span>

namespace carope {

/// What one unit of text, a window or a document, adds to a mean: the sum of its targets' losses
/// and how many there are.
struct LossSum {
  double loss = 0.0;
  std::int64_t tokens = 0;
};

struct Interval {
  double low, high;
};

/// How units are drawn again. The same numbers of units and the same seed draw the same units.
struct Resampling {
  int resamples = 1000;
  std::uint64_t seed = 1;
};

/// The mean loss of all targets.
double mean_loss(std::span<const LossSum> units);

/// The 95 % percentile bootstrap interval of the mean loss: units are drawn with replacement, as
/// many as there are, and each draw's losses and targets are summed before they are divided.
Interval mean_interval(std::span<const LossSum> units, const Resampling& resampling);

struct Difference {
  double loss;
  Interval interval;
};

/// The mean loss of `b` minus that of `a`, two models' losses on the same units, with an interval
/// that draws the same units of both: what makes a unit hard for both models does not widen it.
Difference paired_difference(std::span<const LossSum> a, std::span<const LossSum> b,
                             const Resampling& resampling);

}  // namespace carope
