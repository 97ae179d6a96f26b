#include "generate/whole_characters.h"

#include <bit>
#include <utility>

namespace carope {
namespace {

/// Where the last character of `text` begins if some of its bytes are missing; else the end.
std::size_t end_of_whole(std::string_view text) {
  constexpr std::size_t kLongest = 4;
  for (std::size_t length = 1; length <= kLongest && length <= text.size(); ++length) {
    const auto byte = static_cast<unsigned char>(text[text.size() - length]);
    const int ones = std::countl_one(byte);
    if (ones == 1) {
      continue;  // not the first byte of its character
    }
    const bool cut = ones <= static_cast<int>(kLongest) && ones > static_cast<int>(length);
    return cut ? text.size() - length : text.size();
  }
  return text.size();
}

}  // namespace

std::string WholeCharacters::add(std::string_view bytes) {
  std::string text = std::exchange(held_, {});
  text += bytes;
  const std::size_t end = end_of_whole(text);
  held_ = text.substr(end);
  text.resize(end);
  return text;
}

std::string WholeCharacters::finish() { return std::exchange(held_, {}); }

}  // namespace carope
