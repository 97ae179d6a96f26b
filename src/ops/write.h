#pragma once

#include <cstdint>

namespace carope {

/// Whether a result replaces what its tensor holds or is added to it.
enum class Write : std::uint8_t { kOverwrite, kAccumulate };

}  // namespace carope
