#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

namespace carope {

/// Tells a user on standard error how far long work has come, how fast it goes and how long it will
/// take: a bar that redraws itself on a terminal, a line every ten seconds in a log. Any thread may
/// advance it.
class Progress {
 public:
  /// `total` is 0 where the end is not known. Amounts are shown with SI prefixes, e.g. "12.3 MB".
  Progress(std::string title, std::int64_t total, std::string unit);
  ~Progress();

  void advance(std::int64_t amount) {
    done_ += amount;
    draw_if_due();
  }
  void advance_to(std::int64_t done) {
    done_ = done;
    draw_if_due();
  }
  /// Shows a further number behind the rate, e.g. "31.2 M tokens".
  void note(std::string text);
  /// Takes what has been done so far as given, e.g. by an earlier run, and not as this run's speed.
  void start_at(std::int64_t done);

 private:
  void draw_if_due();
  void draw(bool last);

  using Clock = std::chrono::steady_clock;
  const std::string title_, unit_;
  const std::int64_t total_;
  const bool terminal_;
  const Clock::time_point start_ = Clock::now();
  std::atomic<std::int64_t> done_ = 0;
  std::int64_t start_done_ = 0;
  std::atomic<Clock::time_point> next_draw_;
  std::mutex drawing_;
  std::string note_;
  bool drawn_ = false;
};

/// Writes to standard error. That nobody can be told is no reason to lose work.
void tell(std::string_view text);

/// What of a line fits the terminal: one that wraps cannot be drawn over.
std::string fit_terminal(std::string line);

/// A number with three digits and an SI prefix: "1.23 MB", "1.23 M tokens", "17 tokens".
std::string si(double number, std::string_view unit);

/// A duration as people say it: "42 s", "3 min 05 s", "2 h 10 min".
std::string duration(double seconds);

}  // namespace carope
