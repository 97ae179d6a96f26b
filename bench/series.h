#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace carope {

/// A series of measurements and its quartiles.
struct Series {
  std::vector<double> values;

  double quantile(double q) const {
    std::vector<double> sorted = values;
    std::sort(sorted.begin(), sorted.end());
    return sorted[static_cast<std::size_t>(q * static_cast<double>(sorted.size() - 1) + 0.5)];
  }
  double median() const { return quantile(0.5); }
  std::string spread(double scale = 1.0) const {
    return fmt::format("{:.3f} [{:.3f}, {:.3f}]", median() * scale, quantile(0.25) * scale,
                       quantile(0.75) * scale);
  }
  nlohmann::json json() const {
    return {{"median", median()}, {"low", quantile(0.25)}, {"high", quantile(0.75)}};
  }
};

/// values[i] / others[i], round by round: what a slow moment of the machine does to both cancels.
inline Series ratio(const Series& values, const Series& others) {
  Series ratios;
  for (std::size_t i = 0; i < values.values.size(); ++i) {
    ratios.values.push_back(values.values[i] / others.values[i]);
  }
  return ratios;
}

template <class Body>
double seconds(const Body& body) {
  const auto begin = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace carope
