#pragma once

#include <array>
#include <cstdint>
#include <iterator>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "core/random.h"

namespace carope::synth {

/// Random numbers in sequence, the same on every machine.
class Dice {
 public:
  Dice(std::uint64_t seed, std::uint64_t stream) : random_(seed, stream) {}

  std::uint32_t below(std::uint32_t n) {
    return static_cast<std::uint32_t>((std::uint64_t{next()} * n) >> 32);
  }
  /// Uniform in [lowest, highest].
  int range(int lowest, int highest) {
    return lowest + static_cast<int>(below(static_cast<std::uint32_t>(highest - lowest + 1)));
  }
  bool chance(std::uint32_t percent) { return below(100) < percent; }

  template <class List>
  decltype(auto) pick(const List& list) {
    return list[below(static_cast<std::uint32_t>(std::size(list)))];
  }

 private:
  std::uint32_t next() {
    if (used_ == 4) {
      block_ = random_(counter_++);
      used_ = 0;
    }
    return block_[used_++];
  }

  Philox random_;
  std::uint64_t counter_ = 0;
  std::array<std::uint32_t, 4> block_{};
  std::size_t used_ = 4;
};

/// The entries of a list in random order, each once before any comes again.
template <class T>
class Deck {
 public:
  explicit Deck(std::span<const T> list) : list_(list) {
    std::iota(order_.begin(), order_.end(), std::uint8_t{0});
  }

  const T& draw(Dice& dice) {
    const auto left = static_cast<std::uint32_t>(list_.size() - drawn_);
    std::swap(order_[drawn_], order_[drawn_ + dice.below(left)]);
    const T& drawn = list_[order_[drawn_]];
    drawn_ = (drawn_ + 1) % list_.size();
    return drawn;
  }

 private:
  std::span<const T> list_;
  std::array<std::uint8_t, 64> order_;
  std::size_t drawn_ = 0;
};

/// A number in digits, for as long as the program runs; below 10 000.
std::string_view digits(int number);

/// The number that digits stand for.
int value_of(std::string_view digits);

/// What the places {0} to {7} of a form stand for.
using Words = std::array<std::string_view, 8>;

/// Text that grows by forms. In a form, {0} is a word, {a0} the word with "a" or "an" before it,
/// {^0} the word with a capital, and [x|y|z] one of the alternatives, which may hold words.
class Prose {
 public:
  Prose(Dice& dice, std::size_t bytes) : dice_(dice) { text_.reserve(bytes); }

  /// A sentence: begins with a capital, and with a space unless it begins a paragraph.
  void say(std::string_view form, const Words& words = {});
  /// One of several. Words are made before a form is drawn, whatever order a compiler prefers.
  template <std::size_t N>
  void say(const std::string_view (&forms)[N], const Words& words) {
    say(dice_.pick(forms), words);
  }
  /// A line of its own.
  void line(std::string_view form, const Words& words = {});
  void end_paragraph();

  std::string expand(std::string_view form, const Words& words);

  std::size_t size() const { return text_.size(); }
  std::string take() { return std::move(text_); }

 private:
  void append(std::string& text, std::string_view form, const Words& words);

  Dice& dice_;
  std::string text_;
};

}  // namespace carope::synth
