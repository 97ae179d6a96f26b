#pragma once

#include <type_traits>

#include "ops/rotation.h"
#include "ops/rotation/direction.h"
#include "ops/simd_cpu.h"

namespace carope::cpu {

/// Calls body(pairs) with the number of pairs as a compile-time constant where it is a common one,
/// so that loops over pairs become straight vector code.
template <class Body>
void with_pairs(std::int64_t pairs, const Body& body) {
  switch (pairs) {
    case 16:
      return body(std::integral_constant<std::int64_t, 16>{});
    case 32:
      return body(std::integral_constant<std::int64_t, 32>{});
    case 64:
      return body(std::integral_constant<std::int64_t, 64>{});
    default:
      return body(pairs);
  }
}

/// The sines and cosines of one head's pairs. `Count` is what with_pairs() hands out.
template <class Count>
struct SinesOfHead {
  Count pairs;
  alignas(64) float sin[kMaxRotaryPairs];
  alignas(64) float cos[kMaxRotaryPairs];

  explicit SinesOfHead(Count count) : pairs(count) {}

  void set(const std::uint32_t* phase, Direction direction, float magnitude) {
    const float sine_scale = direction == Direction::kForward ? magnitude : -magnitude;
#pragma omp simd
    for (std::int64_t p = 0; p < pairs; ++p) {
      const SinCos value = sincos_turns(phase[p]);
      sin[p] = sine_scale * value.sin;
      cos[p] = magnitude * value.cos;
    }
  }

  /// Rotates the channels of one head in place.
  void rotate(float* head, RotaryLayout layout) const {
    if (layout == RotaryLayout::kHalf) {
#pragma omp simd
      for (std::int64_t p = 0; p < pairs; ++p) {
        const float x = head[p];
        const float y = head[p + pairs];
        head[p] = x * cos[p] - y * sin[p];
        head[p + pairs] = x * sin[p] + y * cos[p];
      }
    } else {
#pragma omp simd
      for (std::int64_t p = 0; p < pairs; ++p) {
        const float x = head[2 * p];
        const float y = head[2 * p + 1];
        head[2 * p] = x * cos[p] - y * sin[p];
        head[2 * p + 1] = x * sin[p] + y * cos[p];
      }
    }
  }
};

}  // namespace carope::cpu
