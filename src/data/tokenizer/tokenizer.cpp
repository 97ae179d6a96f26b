#include "data/tokenizer/tokenizer.h"

#include <algorithm>
#include <bit>
#include <unordered_set>

#include "core/error.h"
#include "core/hash.h"

namespace carope {

Tokenizer::Tokenizer(TokenizerDefinition definition, const std::string& name)
    : definition_(std::move(definition)) {
  auto& tokens = definition_.tokens;
  std::vector<bool> has_byte(256, false);
  std::unordered_set<std::string_view> seen;
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    const std::string& token = tokens[id];
    if (token.size() == 1) {
      const auto byte = static_cast<unsigned char>(token[0]);
      byte_tokens_[byte] = static_cast<TokenId>(id);
      has_byte[byte] = true;
    }
    check<FileError>(token.empty() || seen.insert(token).second,
                     "{}: token {} has the same bytes as another; use the tokenizer's own files",
                     name, id);
  }
  const auto missing = std::find(has_byte.begin(), has_byte.end(), false) - has_byte.begin();
  check<FileError>(missing == 256,
                   "{}: no token for byte {}; a byte-level BPE with all 256 bytes is needed", name,
                   missing);
  std::unordered_set<TokenId> special_ids;
  for (const SpecialToken& special : definition_.specials) {
    if (special.id >= tokens.size()) {
      tokens.resize(std::size_t{special.id} + 1);
    }
    check<FileError>(tokens[special.id].empty() && special_ids.insert(special.id).second,
                     "{}: special token '{}' has id {}, which another token has too; use the "
                     "tokenizer's own files",
                     name, special.text, special.id);
    if (special.text == kEndOfText) {
      end_of_text_ = special.id;
    }
  }
  const std::size_t slots = std::bit_ceil(2 * definition_.merges.size() + 2);
  pairs_.resize(slots);
  shift_ = 64 - std::countr_zero(slots);
  for (const Merge& merge : definition_.merges) {
    insert(merge, name);
  }
}

void Tokenizer::insert(const Merge& merge, const std::string& name) {
  const std::uint32_t key = std::uint32_t{merge.left} << 16 | merge.right;
  std::size_t slot = slot_of(key);
  while (pairs_[slot].rank != kNoRank) {
    check<FileError>(pairs_[slot].key != key,
                     "{}: merge {} repeats an earlier one; use the tokenizer's own files", name,
                     merge.rank);
    slot = (slot + 1) & (pairs_.size() - 1);
  }
  pairs_[slot] = {key, merge.rank, merge.result};
}

std::string_view Tokenizer::text_of(std::int64_t id) const {
  check<Error>(id >= 0 && id < size(),
               "token {} is not in the vocabulary, which has {} tokens; was the text encoded with "
               "another tokenizer?",
               id, size());
  const std::string& bytes = definition_.tokens[static_cast<std::size_t>(id)];
  if (!bytes.empty()) {
    return bytes;
  }
  for (const SpecialToken& special : definition_.specials) {
    if (special.id == id) {
      return special.text;
    }
  }
  throw Error(
      fmt::format("token {} is an unused number of the vocabulary; was the text encoded "
                  "with another tokenizer?",
                  id));
}

std::string Tokenizer::decode(std::span<const TokenId> ids) const {
  std::string text;
  for (const TokenId id : ids) {
    text += text_of(id);
  }
  return text;
}

std::string Tokenizer::fingerprint() const {
  Sha256 hash;
  const auto add = [&](std::string_view kind, std::int64_t id, std::string_view bytes) {
    hash.add(fmt::format("{} {} {}\n", kind, id, bytes.size()));
    hash.add(bytes);
  };
  for (std::size_t id = 0; id < definition_.tokens.size(); ++id) {
    add("token", static_cast<std::int64_t>(id), definition_.tokens[id]);
  }
  for (const SpecialToken& special : definition_.specials) {
    add("special", special.id, special.text);
  }
  return hash.digest();
}

}  // namespace carope
