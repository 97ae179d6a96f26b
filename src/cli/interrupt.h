#pragma once

#include <atomic>

namespace carope {

/// What a program returns when Ctrl-C ended it, as shells have it.
inline constexpr int kInterrupted = 130;

/// While it lives, the first Ctrl-C asks for an orderly end, and the second ends the program at
/// once. One at a time.
class PoliteStop {
 public:
  PoliteStop();
  ~PoliteStop();
  PoliteStop(const PoliteStop&) = delete;
  PoliteStop& operator=(const PoliteStop&) = delete;

  /// Becomes true when the user has asked.
  const std::atomic<bool>& asked() const;
};

}  // namespace carope
