#include "position/rotary_options.h"

namespace carope::encodings {

/// Rotary position embedding with fixed frequencies base^(-2p/D).
Encoding rope(const ModelShape& shape, OptionReader& options) {
  check_rotary(shape);
  const RotaryLayout layout = rotary_layout(options);
  const double base = rotary_base(options);
  return {.rotation = RotationSpec{.turns = FixedTurns{rope_increments(shape.pairs(), base)},
                                   .pairs = shape.pairs(),
                                   .layout = layout}};
}

}  // namespace carope::encodings
