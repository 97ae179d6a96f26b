#include "ops/rotary.h"

#include <cmath>

#include "core/error.h"

namespace carope {

std::vector<double> rope_frequencies(std::int64_t pairs, double base) {
  std::vector<double> frequencies;
  for (std::int64_t p = 0; p < pairs; ++p) {
    frequencies.push_back(std::pow(base, -static_cast<double>(p) / static_cast<double>(pairs)));
  }
  return frequencies;
}

std::vector<std::uint32_t> to_turns(std::span<const double> frequencies) {
  std::vector<std::uint32_t> turns;
  constexpr double kFastest = 1e6;
  for (const double radians : frequencies) {
    check<ConfigError>(std::abs(radians) <= kFastest,
                       "a rotary frequency of {} radians a token is not possible", radians);
    turns.push_back(static_cast<std::uint32_t>(std::llround(radians * kTurnsPerRadian)));
  }
  return turns;
}

std::vector<std::uint32_t> rope_increments(std::int64_t pairs, double base) {
  return to_turns(rope_frequencies(pairs, base));
}

double rope_gate_bias(std::int64_t pairs, double base) {
  // softplus⁻¹(y) = ln(expm1(y)), written so that it cannot overflow.
  const double softplus = std::pow(base, 1.0 / static_cast<double>(pairs)) - 1.0;
  return softplus + std::log(-std::expm1(-softplus));
}

}  // namespace carope
