#pragma once

#include "ops/rotary.h"
#include "ops/simd_math.h"

namespace carope::cpu {

/// The sines and cosines of one head's pairs.
struct Rotation {
  float sin[kMaxRotaryPairs];
  float cos[kMaxRotaryPairs];

  void set(const std::uint32_t* phase, std::int64_t pairs, Direction direction) {
    const float sign = direction == Direction::kForward ? 1.0F : -1.0F;
#pragma omp simd
    for (std::int64_t p = 0; p < pairs; ++p) {
      const SinCos value = sincos_turns(phase[p]);
      sin[p] = sign * value.sin;
      cos[p] = value.cos;
    }
  }

  /// Rotates the 2 * pairs channels of one head in place.
  void apply(float* head, std::int64_t pairs, RotaryLayout layout) const {
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
