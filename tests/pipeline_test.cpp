// Items that many threads turn into results: their order, their number, and how it ends.
#include "core/pipeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <memory>
#include <numeric>
#include <system_error>
#include <thread>

#include "core/error.h"
#include "core/random.h"
#include "support/child.h"
#include "support/errors.h"
#include "support/folder.h"

namespace carope::test {
namespace {

using testing::HasSubstr;

void pause(int item) {
  std::this_thread::sleep_for(
      std::chrono::microseconds(Philox(5, 6).below(200, static_cast<std::uint64_t>(item))));
}

/// Numbers from 0 on; the end is after `count` of them, or never.
class Numbers {
 public:
  explicit Numbers(int count = -1) : count_(count) {}
  std::optional<int> operator()() const {
    EXPECT_FALSE(busy_.exchange(true)) << "two threads produce at once";
    const auto next = next_ == count_ ? std::nullopt : std::optional(next_++);
    busy_ = false;
    return next;
  }

 private:
  int count_;
  mutable int next_ = 0;
  mutable std::atomic<bool> busy_ = false;
};

TEST(Pipeline, HandsResultsOnInOrder) {
  std::vector<int> expected(300);
  std::iota(expected.begin(), expected.end(), 0);
  for (std::size_t threads = 1; threads <= 8; ++threads) {
    const auto caller = std::this_thread::get_id();
    std::vector<int> consumed;
    const Numbers produce(300);
    run_pipeline(
        threads, produce,
        [&](std::size_t thread, int item) {
          EXPECT_LT(thread, threads);
          pause(item);
          return std::make_unique<int>(item);  // results need not be copied
        },
        [&](std::unique_ptr<int> result) {
          EXPECT_EQ(std::this_thread::get_id(), caller);
          consumed.push_back(*result);
        });
    EXPECT_EQ(consumed, expected) << threads << " threads";
  }
}

TEST(Pipeline, GivesEachThreadItsOwnNumber) {
  constexpr std::size_t kThreads = 5;
  std::array<std::atomic<int>, kThreads> inside{};
  const Numbers produce(300);
  run_pipeline(
      kThreads, produce,
      [&](std::size_t thread, int item) {
        EXPECT_EQ(inside.at(thread)++, 0) << "two threads have the same number";
        pause(item);
        --inside.at(thread);
        return item;
      },
      [](int) {});
}

TEST(Pipeline, OfNothingIsNothing) {
  for (const std::size_t threads : {1U, 8U}) {
    const Numbers produce(0);
    run_pipeline(
        threads, produce, [](std::size_t, int item) { return item; }, [](int) { FAIL(); });
  }
}

TEST(Pipeline, HasFewItemsUnderWay) {
  for (const int threads : {1, 2, 5}) {
    std::atomic<int> produced = 0;
    std::atomic<int> consumed = 0;
    const Numbers numbers(200);
    run_pipeline(
        static_cast<std::size_t>(threads),
        [&] {
          EXPECT_LT(produced - consumed, 4 * threads);
          const auto item = numbers();
          produced += item ? 1 : 0;
          return item;
        },
        [](std::size_t, int item) { return item; },
        [&](int item) {
          pause(item);
          ++consumed;
        });
    EXPECT_EQ(consumed, 200);
  }
}

/// Runs over numbers without end; what throws at 37 must end it.
std::string failure_in(const std::string& stage, std::size_t threads) {
  const auto fail_in = [&](const std::string& here, int item) {
    check<Error>(here != stage || item != 37, "{} of 37 failed", here);
    return item;
  };
  const Numbers numbers;
  return message_of<Error>([&] {
    run_pipeline(
        threads, [&] { return std::optional(fail_in("produce", *numbers())); },
        [&](std::size_t, int item) { return fail_in("work", item); },
        [&](int item) { fail_in("consume", item); });
  });
}

TEST(Pipeline, EndsWithTheFirstException) {
  for (std::size_t threads = 1; threads <= 8; ++threads) {
    for (const char* stage : {"produce", "work", "consume"}) {
      for (int repeat = 0; repeat < 20; ++repeat) {
        ASSERT_EQ(failure_in(stage, threads), std::string(stage) + " of 37 failed");
      }
    }
  }
}

TEST(Pipeline, ConsumesNothingBehindAFailure) {
  std::vector<int> consumed;
  const Numbers numbers;
  EXPECT_THROW(run_pipeline(
                   4, numbers,
                   [](std::size_t, int item) {
                     check<Error>(item != 37, "no");
                     return item;
                   },
                   [&](int item) { consumed.push_back(item); }),
               Error);
  for (std::size_t i = 0; i < consumed.size(); ++i) {
    EXPECT_EQ(consumed[i], static_cast<int>(i));
  }
  EXPECT_LE(consumed.size(), 37U);
}

TEST(Pipeline, AFailureWakesThreadsThatWaitForRoom) {
  constexpr std::size_t kThreads = 3;
  std::atomic<std::size_t> produced = 0;
  EXPECT_THROW(run_pipeline(
                   kThreads, [&] { return std::optional(produced++); },
                   [](std::size_t, std::size_t item) { return item; },
                   [&](std::size_t) {
                     while (produced < 4 * kThreads) {
                       std::this_thread::yield();
                     }
                     throw Error("enough");
                   }),
               Error);
  EXPECT_EQ(produced, 4 * kThreads);
}

TEST(Pipeline, EndsWhereTheSystemAllowsNoMoreThreads) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "under the address sanitizer memory cannot be limited";
#endif
  const std::string said = in_a_child([] {
    std::ifstream status("/proc/self/statm");
    rlim_t pages = 0;
    status >> pages;
    // Room for the stacks of a few threads.
    const rlim_t bytes = pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + (100U << 20U);
    const rlimit limit{bytes, bytes};
    setrlimit(RLIMIT_AS, &limit);
    const Numbers numbers;
    return message_of<std::system_error>([&] {
      // Slow enough that no thread has ended, and given its stack back, when the last is started.
      const auto work = [](std::size_t, int item) {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        return item;
      };
      run_pipeline(1000, numbers, work, [](int) {});
    });
  });
  EXPECT_THAT(said, HasSubstr("Resource temporarily unavailable"));
}

TEST(WorkerCount, RefusesImpossibleNumbers) {
  EXPECT_EQ(worker_count(3), 3U);
  EXPECT_GE(worker_count(0), 1U);
  EXPECT_THAT(message_of<ConfigError>([] { worker_count(100000); }),
              HasSubstr("threads = 100000 is not possible; give 1 to 1024"));
  EXPECT_THAT(message_of<ConfigError>([] { worker_count(-1); }), HasSubstr("threads = -1"));
}

}  // namespace
}  // namespace carope::test
