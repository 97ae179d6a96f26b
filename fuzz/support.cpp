#include "support.h"

#include <cstdio>
#include <cstdlib>
#include <regex>

#include "data/tokenizer/pretokenizer.h"

namespace carope::fuzz {

void require(bool condition, std::string_view what) {
  if (!condition) {
    fmt::print(stderr, "This does not hold: {}\n", what);
    std::abort();
  }
}

std::size_t first_ascii_piece(std::string_view text) {
  static const std::regex kPattern(
      R"('s|'t|'re|'ve|'m|'ll|'d| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+)",
      std::regex::optimize);
  std::cmatch match;
  require(std::regex_search(text.data(), text.data() + text.size(), match, kPattern,
                            std::regex_constants::match_continuous),
          "something matches anywhere");
  return static_cast<std::size_t>(match.length());
}

ReferenceEncoder::ReferenceEncoder(const TokenizerDefinition& definition)
    : definition_(definition) {
  for (std::size_t id = 0; id < definition.tokens.size(); ++id) {
    if (!definition.tokens[id].empty()) {
      ids_.emplace(definition.tokens[id], static_cast<TokenId>(id));
    }
  }
  for (const Merge& merge : definition.merges) {
    merges_.emplace(std::uint32_t{merge.left} << 16 | merge.right, merge);
  }
}

std::vector<TokenId> ReferenceEncoder::encode(std::string_view text) const {
  std::vector<TokenId> ids;
  while (!text.empty()) {
    const std::size_t length = first_piece(text);
    require(0 < length && length <= text.size(), "a piece has bytes, all of them of the text");
    const std::string piece(text.substr(0, length));
    require(first_piece(piece) == length, "a piece by itself is one piece");
    const std::vector<TokenId> more = encode_piece(piece);
    ids.insert(ids.end(), more.begin(), more.end());
    text.remove_prefix(length);
  }
  return ids;
}

std::vector<TokenId> ReferenceEncoder::encode_with_specials(std::string_view text) const {
  std::vector<TokenId> ids;
  std::size_t begin = 0;
  const auto encode_until = [&](std::size_t end) {
    const std::vector<TokenId> more = encode(text.substr(begin, end - begin));
    ids.insert(ids.end(), more.begin(), more.end());
  };
  for (std::size_t at = 0; at < text.size();) {
    const SpecialToken* longest = nullptr;
    for (const SpecialToken& special : definition_.specials) {
      if (text.substr(at).starts_with(special.text) &&
          (longest == nullptr || special.text.size() > longest->text.size())) {
        longest = &special;
      }
    }
    if (longest == nullptr) {
      ++at;
      continue;
    }
    encode_until(at);
    ids.push_back(longest->id);
    at += longest->text.size();
    begin = at;
  }
  encode_until(text.size());
  return ids;
}

std::vector<TokenId> ReferenceEncoder::encode_piece(const std::string& piece) const {
  if (const auto whole = ids_.find(piece); definition_.whole_pieces && whole != ids_.end()) {
    return {whole->second};
  }
  std::vector<TokenId> ids;
  for (const char byte : piece) {
    ids.push_back(ids_.at(std::string(1, byte)));
  }
  while (true) {
    const Merge* best = nullptr;
    std::size_t place = 0;
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto merge = merges_.find(std::uint32_t{ids[i]} << 16 | ids[i + 1]);
      if (merge != merges_.end() && (best == nullptr || merge->second.rank < best->rank)) {
        best = &merge->second;
        place = i;
      }
    }
    if (best == nullptr) {
      return ids;
    }
    ids[place] = best->result;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(place) + 1);
  }
}

}  // namespace carope::fuzz
