#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace carope {

/// How vocab.bpe, encoder.json and tokenizer.json write bytes: each of the 256 as one printable
/// character, itself where it is one (of Latin-1), and otherwise the next of U+0100, U+0101, ...
std::string to_alphabet(std::string_view bytes);

/// The bytes that a string of such characters stands for; nothing if it has any other character.
std::optional<std::string> from_alphabet(std::string_view text);

/// Byte number `i` in the order of the alphabet's characters, which is the order of GPT-2's ids.
unsigned char byte_at(int i);

}  // namespace carope
