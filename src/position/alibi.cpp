#include <cmath>

#include "position/encoding.h"

namespace carope::encodings {

/// Attention with linear biases: head h of H is penalised by 2^(-8(h+1)/H) a token of distance.
Encoding alibi(const ModelShape& shape, OptionReader& /*options*/) {
  Slopes slopes;
  for (std::int64_t h = 0; h < shape.heads; ++h) {
    slopes.per_head.push_back(static_cast<float>(
        std::exp2(-8.0 * static_cast<double>(h + 1) / static_cast<double>(shape.heads))));
  }
  return {.bias = slopes};
}

}  // namespace carope::encodings
