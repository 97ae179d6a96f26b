#include "ops/offsets.h"

namespace carope::cpu {

void advance(Context& /*ctx*/, const Tensor& offsets, std::int64_t tokens) {
  for (std::int64_t b = 0; b < offsets.size(); ++b) {
    offsets.data<std::int32_t>()[b] += static_cast<std::int32_t>(tokens);
  }
}

}  // namespace carope::cpu
