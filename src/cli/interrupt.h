#pragma once

#include <atomic>

namespace carope {

/// What a program returns when Ctrl-C, SIGTERM or SIGHUP ended it in order, as shells have it for
/// Ctrl-C.
inline constexpr int kInterrupted = 130;

/// Lets one thread alone hear of Ctrl-C, of SIGTERM and, unless it is ignored, of SIGHUP. To be
/// called before there are others. A handler that runs wherever the signal finds the program would
/// write its frame to that thread's stack, and oneDNN's matrix products let the stack pointer point
/// into the heap.
void watch_for_interrupts();

/// While it lives, the first of these signals asks for an orderly end. A second Ctrl-C ends the
/// program at once, as the first signal does otherwise; another of the others changes nothing, up
/// to the program's end. One at a time. Of ranks that get the signal together, one speaks.
class PoliteStop {
 public:
  explicit PoliteStop(bool speaks = true);
  ~PoliteStop();
  PoliteStop(const PoliteStop&) = delete;
  PoliteStop& operator=(const PoliteStop&) = delete;

  /// Becomes true when the user has asked.
  const std::atomic<bool>& asked() const;

  /// Makes it so where it was another rank that was asked.
  void ask() const;
};

}  // namespace carope
