#pragma once

#include <cstdint>

namespace carope {

/// What the last bits of a matrix product may depend on.
enum class Rounding : std::uint8_t {
  kAsFastest,  // on how many rows are computed together: whatever is fastest for the shape
  kByRow,      // on the row alone: text gives the same bits however it is cut into calls
};

}  // namespace carope
