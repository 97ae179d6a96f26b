#include "position/rotary_options.h"

namespace carope {

RotaryLayout rotary_layout(OptionReader& options) {
  return options.choice<RotaryLayout>(
      "layout", RotaryLayout::kHalf,
      {{"half", RotaryLayout::kHalf}, {"interleaved", RotaryLayout::kInterleaved}});
}

double rotary_base(OptionReader& options) {
  const double base = options.number("base", 10000.0, 1.0);
  check<ConfigError>(base > 1.0, "{} = {} turns every pair alike; give more than 1",
                     options.name("base"), base);
  return base;
}

void check_rotary(const ModelShape& shape) {
  check<ConfigError>(
      shape.pairs() <= kMaxRotaryPairs,
      "model.heads = {} gives each head {} dimensions; a rotary encoding takes at most {}",
      shape.heads, shape.head_dim, 2 * kMaxRotaryPairs);
}

}  // namespace carope
