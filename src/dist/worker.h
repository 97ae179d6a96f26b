#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace carope {

/// A thread that does what it is given, in that order, beside its owner. When something fails, it
/// does nothing more.
class Worker {
 public:
  Worker();
  /// Waits until everything given is done.
  ~Worker();

  void give(std::function<void()> task);
  /// Returns when everything given is done; throws what that threw.
  void wait();
  /// The same, but false where it is not done after so long.
  bool wait_for(std::chrono::milliseconds patience);

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;  // the first is under way
  std::exception_ptr failure_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace carope
