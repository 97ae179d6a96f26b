#pragma once

#include <array>
#include <cstdint>

namespace carope {

/// Philox 4x32-10: a counter-based generator. Number i of stream s under a seed is a pure function
/// of (seed, s, i), so the order in which numbers are drawn, or by how many threads, does not
/// matter.
class Philox {
 public:
  Philox(std::uint64_t seed, std::uint64_t stream) : seed_(seed), stream_(stream) {}

  std::array<std::uint32_t, 4> operator()(std::uint64_t counter) const;

  /// Uniform in [0, 1).
  double uniform(std::uint64_t i) const;
  /// Standard normal.
  double normal(std::uint64_t i) const;
  /// Uniform in [0, n).
  std::uint32_t below(std::uint32_t n, std::uint64_t i) const;

 private:
  std::uint64_t seed_;
  std::uint64_t stream_;
};

}  // namespace carope
