#include "data/tokenizer/byte_alphabet.h"

#include <array>

namespace carope {
namespace {

struct Alphabet {
  std::array<char16_t, 256> character{};      // of a byte
  std::array<int, 0x144> byte{};              // of a character; -1 if none
  std::array<unsigned char, 256> in_order{};  // bytes by character
};

constexpr bool is_printable(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

constexpr Alphabet make_alphabet() {
  Alphabet alphabet;
  alphabet.byte.fill(-1);
  char16_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const char16_t character = is_printable(byte) ? static_cast<char16_t>(byte) : next++;
    alphabet.character[static_cast<std::size_t>(byte)] = character;
    alphabet.byte[character] = byte;
  }
  std::size_t count = 0;
  for (const int byte : alphabet.byte) {
    if (byte >= 0) {
      alphabet.in_order[count++] = static_cast<unsigned char>(byte);
    }
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = make_alphabet();

}  // namespace

std::string to_alphabet(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) {
    const char16_t character = kAlphabet.character[static_cast<unsigned char>(byte)];
    if (character < 0x80) {
      text += static_cast<char>(character);
    } else {
      text += static_cast<char>(0xc0 | character >> 6);
      text += static_cast<char>(0x80 | (character & 0x3f));
    }
  }
  return text;
}

std::optional<std::string> from_alphabet(std::string_view text) {
  std::string bytes;
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::size_t character = static_cast<unsigned char>(text[i]);
    if (character >= 0xc0 && character < 0xe0 && i + 1 < text.size()) {
      const std::size_t low = static_cast<unsigned char>(text[++i]);
      if ((low & 0xc0) != 0x80) {
        return std::nullopt;
      }
      character = (character & 0x1f) << 6 | (low & 0x3f);
    } else if (character >= 0x80) {
      return std::nullopt;
    }
    if (character >= kAlphabet.byte.size() || kAlphabet.byte[character] < 0) {
      return std::nullopt;
    }
    bytes += static_cast<char>(kAlphabet.byte[character]);
  }
  return bytes;
}

unsigned char byte_at(int i) { return kAlphabet.in_order[static_cast<std::size_t>(i)]; }

}  // namespace carope
