#include "data/tokenizer/pretokenizer.h"

#include <array>
#include <cstdint>
#include <memory>

namespace carope {
namespace {

struct CodePointRange {
  std::uint32_t first, last;
};

#include "data/tokenizer/unicode_classes.inc"

enum Class : std::uint8_t { kOther, kLetter, kNumber, kSpace };

constexpr std::uint32_t kCodePoints = 0x110000;

/// The class of every code point.
const Class* code_point_classes() {
  static const auto kClasses = [] {
    auto classes = std::make_unique<std::array<Class, kCodePoints>>();
    const auto mark = [&](Class mark, std::uint32_t first, std::uint32_t last) {
      for (std::uint32_t point = first; point <= last; ++point) {
        (*classes)[point] = mark;
      }
    };
    for (const auto [first, last] : kLetters) {
      mark(kLetter, first, last);
    }
    for (const auto [first, last] : kNumbers) {
      mark(kNumber, first, last);
    }
    constexpr CodePointRange kSpaces[] = {
        {0x09, 0x0d},     {0x20, 0x20},     {0x85, 0x85},     {0xa0, 0xa0},     {0x1680, 0x1680},
        {0x2000, 0x200a}, {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}};
    for (const auto [first, last] : kSpaces) {
      mark(kSpace, first, last);
    }
    return classes;
  }();
  return kClasses->data();
}

struct Character {
  Class kind;
  std::uint8_t bytes;
};

/// Reads text one character at a time: a code point, or one byte that is not part of any.
class Reader {
 public:
  explicit Reader(std::string_view text)
      : text_(reinterpret_cast<const unsigned char*>(text.data())), size_(text.size()) {}

  /// The character at byte `at`, which must be inside the text.
  Character operator[](std::size_t at) const {
    const unsigned char lead = text_[at];
    return lead < 0x80 ? Character{classes_[lead], 1} : beyond_ascii(at);
  }

  /// Whether the character that ends before byte `at` is a space.
  bool is_space_before(std::size_t at) const {
    for (std::size_t bytes = 1; bytes <= 3 && bytes <= at; ++bytes) {
      const Character character = (*this)[at - bytes];
      if (character.bytes == bytes && character.kind == kSpace) {
        return true;
      }
    }
    return false;
  }

  /// The end of the longest run of one class that begins at `at`.
  std::size_t end_of_run(std::size_t at, Class kind) const {
    while (at < size_) {
      const Character next = (*this)[at];
      if (next.kind != kind) {
        break;
      }
      at += next.bytes;
    }
    return at;
  }

 private:
  /// UTF-8 as Unicode defines it: no overlong forms, no surrogates, nothing past U+10FFFF.
  Character beyond_ascii(std::size_t at) const {
    constexpr Character kInvalid{kOther, 1};
    const std::uint32_t lead = text_[at];
    const std::size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
    if (lead < 0xc2 || lead > 0xf4 || size_ - at < length) {
      return kInvalid;
    }
    std::uint32_t point = lead & (0x7fu >> length);
    for (std::size_t i = 1; i < length; ++i) {
      const std::uint32_t next = text_[at + i];
      if ((next & 0xc0) != 0x80) {
        return kInvalid;
      }
      point = point << 6 | (next & 0x3f);
    }
    const bool overlong = (length == 3 && point < 0x800) || (length == 4 && point < 0x10000);
    const bool surrogate = point >= 0xd800 && point < 0xe000;
    if (overlong || surrogate || point >= kCodePoints) {
      return kInvalid;
    }
    return {classes_[point], static_cast<std::uint8_t>(length)};
  }

  const unsigned char* text_;
  std::size_t size_;
  const Class* classes_ = code_point_classes();
};

/// The length of 's 't 're 've 'm 'll or 'd at the beginning of `text`; 0 if none is there.
std::size_t contraction(std::string_view text) {
  if (text.size() < 2 || text[0] != '\'') {
    return 0;
  }
  switch (text[1]) {
    case 's':
    case 't':
    case 'm':
    case 'd':
      return 2;
    case 'r':
    case 'v':
      return text.size() > 2 && text[2] == 'e' ? 3 : 0;
    case 'l':
      return text.size() > 2 && text[2] == 'l' ? 3 : 0;
    default:
      return 0;
  }
}

}  // namespace

std::size_t first_piece(std::string_view text) {
  if (const std::size_t length = contraction(text); length > 0) {
    return length;
  }
  const Reader reader(text);
  const Character first = reader[0];
  if (first.kind != kSpace) {
    return reader.end_of_run(first.bytes, first.kind);
  }
  if (text[0] == ' ' && text.size() > 1) {
    const Character second = reader[1];
    if (second.kind != kSpace) {
      return reader.end_of_run(1 + second.bytes, second.kind);
    }
  }
  // Spaces before something else leave their last one to it.
  std::size_t last = 0;
  std::size_t end = first.bytes;
  while (end < text.size()) {
    const Character next = reader[end];
    if (next.kind != kSpace) {
      return last > 0 ? last : end;
    }
    last = end;
    end += next.bytes;
  }
  return end;
}

std::size_t last_safe_cut(std::string_view text) {
  const Reader reader(text);
  // Only spaces of one byte are cut before: a longer one may be incomplete at the end of `text`.
  for (std::size_t at = text.size(); at-- > 1;) {
    if (reader[at].kind == kSpace && reader[at].bytes == 1 && !reader.is_space_before(at)) {
      return at;
    }
  }
  return 0;
}

}  // namespace carope
