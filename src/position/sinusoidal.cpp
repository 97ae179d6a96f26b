#include <numbers>

#include "position/encoding.h"

namespace carope::encodings {

/// Fixed sines and cosines, added to the embedding. The default scale gives them the root mean
/// square of a fresh embedding; at scale 1 they drown it.
Encoding sinusoidal(const ModelShape& shape, OptionReader& options) {
  constexpr double kBase = 10000.0;
  check<ConfigError>(shape.width % 2 == 0, "model.width = {} must be even for sinusoidal positions",
                     shape.width);
  const double scale = options.number("scale", 0.02 * std::numbers::sqrt2, 0.0);
  return {.additive = Sinusoids{.increments = rope_increments(shape.width / 2, kBase),
                                .scale = static_cast<float>(scale)}};
}

}  // namespace carope::encodings
