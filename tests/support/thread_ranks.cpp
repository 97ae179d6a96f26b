#include "support/thread_ranks.h"

#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>

#include "dist/check_tensors.h"

namespace carope::test {
namespace {

/// Where the ranks meet.
class Meeting {
 public:
  explicit Meeting(int ranks) : given_(static_cast<std::size_t>(ranks)) {}

  std::size_t size() const { return given_.size(); }

  /// Gives something, and calls `use` with what all ranks gave while all are there.
  void exchange(int rank, std::span<std::byte> given,
                const std::function<void(const std::vector<std::span<std::byte>>&)>& use) {
    given_[static_cast<std::size_t>(rank)] = given;
    wait();
    use(given_);
    wait();
  }

  void fail(std::exception_ptr why) {
    const std::lock_guard lock(mutex_);
    failure_ = failure_ ? failure_ : std::move(why);
    changed_.notify_all();
  }
  std::exception_ptr failure() const { return failure_; }

 private:
  void wait() {
    std::unique_lock lock(mutex_);
    const std::int64_t round = round_;
    if (++arrived_ == size()) {
      arrived_ = 0;
      ++round_;
      changed_.notify_all();
    }
    changed_.wait(lock, [&] { return round_ != round || failure_; });
    check<Error>(round_ != round, "another rank failed");
  }

  std::vector<std::span<std::byte>> given_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t arrived_ = 0;
  std::int64_t round_ = 0;
  std::exception_ptr failure_;
};

std::span<std::byte> bytes_of(const Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.raw()), tensor.bytes()};
}

/// result[i] = the sum of everyone's element begin + i, in the order of the ranks.
template <class T>
void add_up(const std::vector<std::span<std::byte>>& all, std::size_t begin, std::span<T> result) {
  for (std::size_t i = 0; i < result.size(); ++i) {
    T sum{};
    for (const std::span<std::byte> each : all) {
      sum += reinterpret_cast<const T*>(each.data())[begin + i];
    }
    result[i] = sum;
  }
}

class ThreadRank : public Communicator {
 public:
  ThreadRank(Meeting& meeting, int rank, When when) : meeting_(meeting), rank_(rank), when_(when) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(meeting_.size()); }

  void all_reduce(Context& /*ctx*/, const Tensor& values) override {
    later([this, values] {
      std::vector<std::byte> sum(values.bytes());
      add(values, 0, {sum.data(), values.bytes()});
      std::memcpy(values.raw(), sum.data(), sum.size());
    });
  }
  void reduce_scatter(Context& /*ctx*/, const Tensor& values, const Tensor& own) override {
    check_parts(values, own, size());
    later([this, values, own] { add(values, own.size() * rank_, bytes_of(own)); });
  }
  void all_gather(Context& /*ctx*/, const Tensor& own, const Tensor& values) override {
    check_parts(values, own, size());
    later([this, own, values] {
      meeting_.exchange(rank_, bytes_of(own), [&](const auto& all) {
        std::byte* to = bytes_of(values).data();
        for (const std::span<std::byte> part : all) {
          if (part.data() != to) {
            std::memcpy(to, part.data(), part.size());
          }
          to += part.size();
        }
      });
    });
  }
  void broadcast(Context& /*ctx*/, const Tensor& values, int root) override {
    later([this, values, root] {
      meeting_.exchange(rank_, bytes_of(values), [&](const auto& all) {
        if (rank_ != root) {
          std::memcpy(values.raw(), all[static_cast<std::size_t>(root)].data(), values.bytes());
        }
      });
    });
  }
  void join(Context& /*ctx*/) override {
    for (const auto& operation : waiting_) {
      operation();
    }
    waiting_.clear();
  }

  void sum(std::span<double> values) override {
    std::vector<double> given(values.begin(), values.end());
    meeting_.exchange(rank_, std::as_writable_bytes(std::span(given)),
                      [&](const auto& all) { add_up<double>(all, 0, values); });
  }
  std::vector<double> gather(std::span<const double> values) override {
    std::vector<double> given(values.begin(), values.end());
    std::vector<double> gathered;
    meeting_.exchange(rank_, std::as_writable_bytes(std::span(given)), [&](const auto& all) {
      for (const std::span<std::byte> each : all) {
        const auto* first = reinterpret_cast<const double*>(each.data());
        gathered.insert(gathered.end(), first, first + each.size() / sizeof(double));
      }
    });
    return gathered;
  }
  void meet() override {
    meeting_.exchange(rank_, {}, [](const auto&) {});
  }

 private:
  void later(std::function<void()> operation) {
    waiting_.push_back(std::move(operation));
    if (when_ == When::kAtOnce) {
      Context none = Context::cpu(1);
      join(none);
    }
  }

  void add(const Tensor& values, std::int64_t begin, std::span<std::byte> result) {
    check_summable(values);
    meeting_.exchange(rank_, bytes_of(values), [&](const auto& all) {
      const auto first = static_cast<std::size_t>(begin);
      if (values.dtype() == DType::kF64) {
        add_up<double>(all, first,
                       {reinterpret_cast<double*>(result.data()), result.size() / sizeof(double)});
      } else {
        add_up<float>(all, first,
                      {reinterpret_cast<float*>(result.data()), result.size() / sizeof(float)});
      }
    });
  }

  Meeting& meeting_;
  const int rank_;
  const When when_;
  std::vector<std::function<void()>> waiting_;
};

}  // namespace

void run_ranks(int ranks, When when, const std::function<void(Communicator&)>& body) {
  Meeting meeting(ranks);
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          ThreadRank communicator(meeting, rank, when);
          body(communicator);
        } catch (...) {
          meeting.fail(std::current_exception());
        }
      });
    }
  }
  if (meeting.failure()) {
    std::rethrow_exception(meeting.failure());
  }
}

}  // namespace carope::test
