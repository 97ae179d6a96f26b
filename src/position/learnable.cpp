#include "position/encoding.h"

namespace carope::encodings {

/// One trained vector a position, added to the embedding.
Encoding learnable(const ModelShape& shape, OptionReader& options) {
  const std::int64_t positions = options.integer("positions", shape.length, 1);
  return {.additive = LearnedPositions{{.name = "table",
                                        .shape = {positions, shape.width},
                                        .init = {.deviation = 0.02},
                                        .decay = true}},
          .max_length = positions};
}

}  // namespace carope::encodings
