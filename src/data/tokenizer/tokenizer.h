#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/token.h"

namespace carope {

/// `left` and `right` side by side become `result`; of several that apply, the lowest rank goes
/// first.
struct Merge {
  TokenId left, right, result;
  std::uint32_t rank;
};

/// A token that stands for no text of a document but is written as `text`, e.g. <|endoftext|>.
struct SpecialToken {
  std::string text;
  TokenId id;
};

/// What a tokenizer file says.
struct TokenizerDefinition {
  std::vector<std::string> tokens;  // the bytes of each id; empty for special and unused ids
  std::vector<Merge> merges;
  std::vector<SpecialToken> specials;
  /// A piece that is a token becomes that token, whether merges lead there or not.
  bool whole_pieces = false;
};

/// The name of the special token that stands before every document.
inline constexpr std::string_view kEndOfText = "<|endoftext|>";

/// A byte-level BPE as GPT-2's: immutable, shared by all threads. Texts are encoded by an Encoder.
class Tokenizer {
 public:
  /// Checks that the definition is complete and consistent; `name` is for messages.
  Tokenizer(TokenizerDefinition definition, const std::string& name);

  /// Reads vocab.bpe + encoder.json, merges.txt + vocab.json, a Hugging Face tokenizer.json, a
  /// .tiktoken rank file, or a folder that holds one of these.
  static Tokenizer load(const std::filesystem::path& path);

  /// Ids are below this number.
  std::int64_t size() const { return static_cast<std::int64_t>(definition_.tokens.size()); }
  std::optional<TokenId> end_of_text() const { return end_of_text_; }
  const TokenizerDefinition& definition() const { return definition_; }

  /// The bytes of a token; a special token's are its text. Throws if there is no such token.
  std::string_view text_of(std::int64_t id) const;
  std::string decode(std::span<const TokenId> ids) const;

  /// SHA-256 of the vocabulary: the same for every file format of one tokenizer.
  std::string fingerprint() const;

  TokenId token_of_byte(unsigned char byte) const { return byte_tokens_[byte]; }

  struct Merged {
    std::uint32_t rank;
    TokenId id;
  };
  static constexpr std::uint32_t kNoRank = ~std::uint32_t{0};
  /// What a pair of tokens becomes; rank kNoRank if the two do not merge.
  Merged merge(TokenId left, TokenId right) const {
    const std::uint32_t key = std::uint32_t{left} << 16 | right;
    for (std::size_t slot = slot_of(key);; slot = (slot + 1) & (pairs_.size() - 1)) {
      const Pair& pair = pairs_[slot];
      if (pair.key == key || pair.rank == kNoRank) {
        return {pair.rank, pair.result};
      }
    }
  }

 private:
  struct Pair {
    std::uint32_t key = 0;
    std::uint32_t rank = kNoRank;
    TokenId result = 0;
  };

  std::size_t slot_of(std::uint32_t key) const {
    return static_cast<std::size_t>(key * std::uint64_t{0x9e3779b97f4a7c15} >> shift_);
  }
  void insert(const Merge& merge, const std::string& name);

  TokenizerDefinition definition_;
  std::vector<Pair> pairs_;  // open addressing, at most half full
  int shift_ = 0;
  TokenId byte_tokens_[256] = {};
  std::optional<TokenId> end_of_text_;
};

/// Writes a tokenizer whose merges are a list (not read from ranks) as a Hugging Face
/// tokenizer.json.
void save_tokenizer(const Tokenizer& tokenizer, const std::filesystem::path& path);

/// Copies the files that `Tokenizer::load(path)` reads into a folder, from which they load again: a
/// Hugging Face file of any name becomes tokenizer.json. Another tokenizer's files there are
/// removed.
void copy_tokenizer(const std::filesystem::path& path, const std::filesystem::path& folder);

}  // namespace carope
