#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/token.h"

namespace carope {

/// What a shard holds. A document is an end-of-text token and what follows up to the next; the
/// first and the last of a shard may be cut. Lengths are in tokens and sum to those of the shard.
struct TokenStatistics {
  std::int64_t tokens = 0;
  TokenId highest = 0;
  std::int64_t documents = 0;
  bool begins_inside = false;                      // the first document began in the shard before
  std::map<std::int64_t, std::int64_t> lengths{};  // how many documents have each length
  std::vector<std::span<const TokenId>> first_documents{};  // a few

  double mean_length() const;
  /// Of an even number of documents, the lower one in the middle.
  std::int64_t median_length() const;
  std::int64_t longest() const;

  struct Bin {
    std::int64_t lowest, highest;  // lengths, both included: 1, 2 to 3, 4 to 7, ...
    std::int64_t documents;
  };
  /// The lengths by powers of two, from the shortest document's to the longest's.
  std::vector<Bin> histogram() const;
};

/// Counts a shard's tokens and documents, and keeps views of the first `kept` documents. Without
/// the id of the end-of-text token no documents are known.
TokenStatistics count_tokens(std::span<const TokenId> tokens, std::optional<TokenId> end_of_text,
                             std::int64_t kept);

/// GPT-2's end-of-text id if it occurs: what ready-made shards, which name no tokenizer, have.
std::optional<TokenId> guess_end_of_text(std::span<const TokenId> tokens);

/// Text as one line can show it: what a terminal would act on is written as \n, \x1b and so on.
std::string one_line(std::string_view text);

}  // namespace carope
