#pragma once

#include <condition_variable>
#include <cstddef>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/context.h"

namespace carope {

/// Threads to work with where a user asks for `threads`; 0 asks for all that the machine has.
inline std::size_t worker_count(int threads) {
  return static_cast<std::size_t>(Context::cpu(threads).threads());
}

/// Turns a stream of items into results by many threads and hands the results on in the items'
/// order:
///     produce() -> std::optional<Item>       one caller at a time; nothing at the end
///     work(std::size_t thread, Item) -> Result
///     consume(Result)                        on the calling thread, in order
/// Few items are under way at any time, so memory stays bounded. The first exception of any of the
/// three ends all and is thrown again.
template <class Produce, class Work, class Consume>
void run_pipeline(std::size_t threads, const Produce& produce, const Work& work,
                  const Consume& consume) {
  using Item = typename std::invoke_result_t<Produce>::value_type;
  using Result = std::invoke_result_t<Work, std::size_t, Item>;
  std::mutex producing, mutex;
  std::condition_variable changed;
  std::map<std::size_t, Result> results;  // finished, not yet consumed
  std::size_t produced = 0, consumed = 0, running = threads;
  const std::size_t most_under_way = 4 * threads;
  std::exception_ptr failure;

  const auto fail = [&] {
    const std::scoped_lock lock(mutex);
    failure = failure ? failure : std::current_exception();
    changed.notify_all();
  };
  const auto run_worker = [&](std::size_t thread) {
    try {
      while (true) {
        std::optional<Item> item;
        std::size_t index = 0;
        {
          const std::scoped_lock turn(producing);
          {
            std::unique_lock lock(mutex);
            changed.wait(lock, [&] { return failure || produced - consumed < most_under_way; });
            if (failure) {
              break;
            }
          }
          item = produce();
          if (!item) {
            break;
          }
          const std::scoped_lock lock(mutex);
          index = produced++;
        }
        Result result = work(thread, std::move(*item));
        const std::scoped_lock lock(mutex);
        results.emplace(index, std::move(result));
        changed.notify_all();
      }
    } catch (...) {
      fail();
    }
    const std::scoped_lock lock(mutex);
    --running;
    changed.notify_all();
  };

  std::vector<std::jthread> workers;
  try {
    for (std::size_t thread = 0; thread < threads; ++thread) {
      workers.emplace_back(run_worker, thread);  // fails where the system allows no more threads
    }
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [&] { return failure || running == 0 || results.contains(consumed); });
      const auto next = results.find(consumed);
      if (failure || next == results.end()) {
        break;
      }
      Result result = std::move(next->second);
      results.erase(next);
      lock.unlock();
      consume(std::move(result));
      lock.lock();
      ++consumed;
      changed.notify_all();
    }
  } catch (...) {
    fail();
  }
  workers.clear();
  if (failure) {
    std::rethrow_exception(failure);
  }
}

}  // namespace carope
