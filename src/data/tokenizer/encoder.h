#pragma once

#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/tokenizer/tokenizer.h"

namespace carope {

/// Whether the text of a special token, such as <|endoftext|>, stands for the token or for itself.
enum class Specials { kAsText, kAsTokens };

/// Encodes texts. Remembers the tokens of recent pieces, so each thread has its own.
class Encoder {
 public:
  /// `tokenizer` must outlive the encoder.
  explicit Encoder(const Tokenizer& tokenizer);

  /// Appends the tokens of `text`.
  void encode(std::string_view text, std::vector<TokenId>& ids,
              Specials specials = Specials::kAsText);

 private:
  /// Pieces of up to 15 bytes with their length make a key of 16.
  struct Key {
    std::uint64_t low, high;
    friend bool operator==(const Key&, const Key&) = default;
  };
  struct Remembered {
    Key key{};  // no piece has length 0
    std::uint16_t count = 0;
    TokenId ids[7] = {};
  };
  static constexpr int kCacheBits = 17;
  static constexpr std::size_t kLongestKey = 15;
  static constexpr std::size_t kShortPiece = 64;

  /// The key of the first `length` bytes of a text.
  static Key key_of(std::string_view text, std::size_t length);
  void encode_text(std::string_view text, std::vector<TokenId>& ids);
  /// Each leaves the tokens of one piece, merged in order of rank, in `merged_`.
  void merge_piece(std::string_view piece);
  void merge_short(std::string_view piece);  // O(n²), the fastest for words
  void merge_long(std::string_view piece);   // O(n log n)

  struct Symbol {
    std::uint32_t previous, next;  // positions in the piece
    TokenId id;
    bool alive;
  };
  struct Candidate {
    std::uint32_t rank, position;
    friend bool operator>(const Candidate& a, const Candidate& b) {
      return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
    }
  };

  const Tokenizer& tokenizer_;
  std::unordered_map<std::string_view, TokenId> whole_pieces_;  // if the tokenizer asks for it
  std::vector<Remembered> cache_;
  std::vector<Symbol> symbols_;        // of the piece at hand
  std::vector<Candidate> candidates_;  // a heap
  std::vector<TokenId> merged_;        // the result
};

/// The tokens of a long text, its parts encoded by many threads.
std::vector<TokenId> encode_in_parallel(const Tokenizer& tokenizer, std::string_view text,
                                        Specials specials, int threads);

}  // namespace carope
