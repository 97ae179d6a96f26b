#pragma once

#include <atomic>

namespace carope {

/// What a command that was interrupted returns.
inline constexpr int kInterrupted = 130;

/// From here on the first Ctrl-C sets the flag that is returned; the second ends the program at
/// once.
const std::atomic<bool>& stop_politely();

}  // namespace carope
