#include "dist/worker.h"

#include <utility>

namespace carope {

Worker::Worker() : thread_([this] { work(); }) {}

Worker::~Worker() {
  {
    const std::scoped_lock lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Worker::give(std::function<void()> task) {
  {
    const std::scoped_lock lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  changed_.notify_all();
}

void Worker::wait() {
  while (!wait_for(std::chrono::hours(1))) {
  }
}

bool Worker::wait_for(std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, patience, [&] { return tasks_.empty(); })) {
    return false;
  }
  if (failure_) {
    std::rethrow_exception(failure_);
  }
  return true;
}

void Worker::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return ending_ || !tasks_.empty(); });
    if (tasks_.empty()) {
      return;
    }
    if (!failure_) {
      const std::function<void()> task = tasks_.front();
      lock.unlock();
      std::exception_ptr failure;
      try {
        task();
      } catch (...) {
        failure = std::current_exception();
      }
      lock.lock();
      failure_ = failure;
    }
    tasks_.pop_front();
    changed_.notify_all();
  }
}

}  // namespace carope
