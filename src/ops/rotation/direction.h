#pragma once

#include <cstdint>

namespace carope {

/// The backward pass of a rotation is a rotation the other way.
enum class Direction : std::uint8_t { kForward, kBackward };

}  // namespace carope
