#include "core/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <utility>

namespace carope {

using namespace std::chrono_literals;

Progress::Progress(std::string title, std::int64_t total, std::string unit)
    : title_(std::move(title)),
      unit_(std::move(unit)),
      total_(total),
      terminal_(isatty(STDERR_FILENO) != 0),
      next_draw_(start_ + (terminal_ ? 200ms : 10s)) {}

Progress::~Progress() {
  if (drawn_ || terminal_) {
    draw(true);
  }
}

void Progress::draw_if_due() {
  const auto now = Clock::now();
  auto due = next_draw_.load();
  if (now >= due && next_draw_.compare_exchange_strong(due, now + (terminal_ ? 100ms : 10s))) {
    draw(false);
  }
}

void Progress::note(std::string text) {
  const std::scoped_lock lock(drawing_);
  note_ = std::move(text);
}

void Progress::start_at(std::int64_t done) {
  start_done_ = done;
  done_ = done;
}

void Progress::draw(bool last) {
  const std::scoped_lock lock(drawing_);
  const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
  const auto done = static_cast<double>(done_.load());
  const double rate = (done - static_cast<double>(start_done_)) / std::max(seconds, 1e-9);
  std::string line = title_;
  if (total_ > 0) {
    const double part = std::clamp(done / static_cast<double>(total_), 0.0, 1.0);
    constexpr int kCells = 24;
    const int filled = static_cast<int>(part * kCells);
    line += fmt::format(" [{:=<{}}{:{}}] {:3.0f} %", "", filled, "", kCells - filled,
                        std::floor(100 * part));
  }
  line += fmt::format("  {}  {}/s", si(done, unit_), si(rate, unit_));
  if (!note_.empty()) {
    line += "  " + note_;
  }
  if (last) {
    line += "  in " + duration(seconds);
  } else if (total_ > 0 && rate > 0) {
    line += "  " + duration((static_cast<double>(total_) - done) / rate) + " left";
  }
  tell(terminal_ ? fmt::format("\r{}\x1b[K{}", fit_terminal(line), last ? "\n" : "") : line + "\n");
  drawn_ = true;
}

void tell(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

std::string fit_terminal(std::string line) {
  winsize size{};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1) {
    line.resize(std::min<std::size_t>(line.size(), size.ws_col - 1U));
  }
  return line;
}

std::string si(double number, std::string_view unit) {
  static constexpr std::array kPrefixes{"", "k", "M", "G", "T"};
  std::size_t prefix = 0;
  while (std::abs(number) >= 999.5 && prefix + 1 < kPrefixes.size()) {
    number /= 1000;
    ++prefix;
  }
  const int digits = prefix == 0                ? 0
                     : std::abs(number) < 9.995 ? 2
                     : std::abs(number) < 99.95 ? 1
                                                : 0;
  const bool symbol = unit.size() <= 2;  // "MB", but "M tokens"
  return fmt::format("{:.{}f} {}{}{}", number, digits, kPrefixes[prefix],
                     symbol || prefix == 0 ? "" : " ", unit);
}

std::string duration(double seconds) {
  const auto whole = std::llround(std::max(seconds, 0.0));
  if (whole < 60) {
    return fmt::format("{} s", whole);
  }
  if (whole < 3600) {
    return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  }
  return fmt::format("{} h {:02} min", whole / 3600, whole % 3600 / 60);
}

}  // namespace carope
