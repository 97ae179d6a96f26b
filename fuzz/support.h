#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/error.h"
#include "data/tokenizer/tokenizer.h"

namespace carope::fuzz {

/// Stops the process, which libFuzzer takes for a finding, unless `condition` holds.
void require(bool condition, std::string_view what);

/// Whether `body` takes its input. The one other thing that it may do is to throw a FileError that
/// has `name` in it: any other exception ends the process.
template <class Body>
bool accepts(std::string_view name, const Body& body) {
  try {
    body();
    return true;
  } catch (const FileError& error) {
    require(std::string_view(error.what()).find(name) != std::string_view::npos,
            "an error names the file");
    return false;
  }
}

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

/// The first piece of a text in ASCII, by a regular expression.
std::size_t first_ascii_piece(std::string_view text);

/// BPE as it is defined: within each piece, the leftmost pair of the lowest rank merges, until none
/// does. O(n^2), and nothing of it is shared with the Encoder but the definition and the pieces.
class ReferenceEncoder {
 public:
  explicit ReferenceEncoder(const TokenizerDefinition& definition);

  std::vector<TokenId> encode(std::string_view text) const;
  /// With <|endoftext|> and the like taken for the tokens.
  std::vector<TokenId> encode_with_specials(std::string_view text) const;

 private:
  std::vector<TokenId> encode_piece(const std::string& piece) const;

  const TokenizerDefinition& definition_;
  std::unordered_map<std::string, TokenId> ids_;
  std::unordered_map<std::uint32_t, Merge> merges_;  // by left << 16 | right
};

}  // namespace carope::fuzz
