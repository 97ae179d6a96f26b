#include "position/rotary_options.h"

namespace carope::encodings {

/// RoPE whose frequencies fall evenly from 1 towards `slowest` instead of geometrically.
Encoding even_rope(const ModelShape& shape, OptionReader& options) {
  check_rotary(shape);
  const double slowest = options.number("slowest", 1e-4, 0.0);
  const auto pairs = static_cast<double>(shape.pairs());
  std::vector<double> frequencies;
  for (double p = 0; p < pairs; ++p) {
    frequencies.push_back(1.0 - (1.0 - slowest) * p / pairs);
  }
  return {.rotation = RotationSpec{.turns = FixedTurns{to_turns(frequencies)},
                                   .pairs = shape.pairs(),
                                   .layout = rotary_layout(options)}};
}

}  // namespace carope::encodings
