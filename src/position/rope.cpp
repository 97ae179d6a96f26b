#include <algorithm>

#include "position/rotary_options.h"
#include "position/scaling.h"

namespace carope::encodings {
namespace {

/// An option in (0, 1].
double share(OptionReader& options, const char* name) {
  const double value = options.number(name, 1.0, 0.0);
  check<ConfigError>(0.0 < value && value <= 1.0,
                     "{} = {} is not possible; give a share above 0, up to 1", options.name(name),
                     value);
  return value;
}

}  // namespace

/// Rotary position embedding with fixed frequencies base^(-p/P), scaled for longer sequences.
/// `fraction`: only the fastest share of the pairs turns (p-RoPE). `rotary_fraction`: only the
/// first share of a head's channels turns, among themselves (GPT-NeoX).
Encoding rope(const ModelShape& shape, OptionReader& options) {
  check_rotary(shape);
  const RotaryLayout layout = rotary_layout(options);
  const double base = rotary_base(options);
  const double fraction = share(options, "fraction");
  const double rotary_fraction = share(options, "rotary_fraction");
  const RopeScaling scaling = read_scaling(options, shape);
  const auto dim = static_cast<std::int64_t>(static_cast<double>(shape.head_dim) * rotary_fraction);
  check<ConfigError>(dim >= 2 && dim % 2 == 0,
                     "{} = {} leaves {} of a head's {} channels to turn; they must be an even "
                     "number, 2 or more",
                     options.name("rotary_fraction"), rotary_fraction, dim, shape.head_dim);
  const float magnitude = scaled_magnitude(scaling);
  check<ConfigError>(
      fraction == 1.0 || magnitude == 1.0F,
      "yarn multiplies q and k by a factor, also the pairs that {} = {} lets stand; use "
      "{}",
      options.name("fraction"), fraction, options.name("rotary_fraction"));
  std::vector<double> frequencies = scaled_frequencies(scaling, dim / 2, base, shape.served);
  const auto turning = static_cast<std::ptrdiff_t>(fraction * static_cast<double>(dim / 2));
  check<ConfigError>(turning >= 1, "{} = {} lets none of {} pairs turn", options.name("fraction"),
                     fraction, dim / 2);
  std::fill(frequencies.begin() + turning, frequencies.end(), 0.0);
  return {.rotation = RotationSpec{.turns = FixedTurns{to_turns(frequencies)},
                                   .pairs = dim / 2,
                                   .layout = layout,
                                   .magnitude = magnitude}};
}

}  // namespace carope::encodings
