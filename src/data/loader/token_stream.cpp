#include "data/loader/token_stream.h"

#include <algorithm>

#include "core/error.h"

namespace carope {
namespace {

/// A shard's tokens must be below the vocabulary. `first` is the place of tokens[0] in the shard.
void check_tokens(const Shard& shard, std::int64_t first, std::span<const TokenId> tokens,
                  std::int64_t vocabulary) {
  TokenId highest = 0;  // a loop without an exit is one that vectorises
  for (const TokenId token : tokens) {
    highest = std::max(highest, token);
  }
  if (highest < vocabulary) [[likely]] {
    return;
  }
  const auto bad = std::find_if(tokens.begin(), tokens.end(),
                                [&](TokenId token) { return token >= vocabulary; });
  const std::int64_t place = first + (bad - tokens.begin());
  throw FileError(fmt::format(
      "{}: token {} (at byte {}) is {}, the vocabulary has {} (0 to {}); was the shard made with "
      "another tokenizer? Use its vocabulary, or make the shard again",
      shard.path().string(), place,
      kShardHeaderBytes + place * static_cast<std::int64_t>(sizeof(TokenId)), *bad, vocabulary,
      vocabulary - 1));
}

}  // namespace

TokenStream::TokenStream(const std::vector<std::filesystem::path>& shards) {
  for (const std::filesystem::path& path : shards) {
    shards_.emplace_back(path);
    ends_.push_back(size() + static_cast<std::int64_t>(shards_.back().tokens().size()));
  }
}

/// Calls `visit(shard, first, last)` for the part [first, last) of each shard that [begin, end)
/// touches.
template <class Visit>
void TokenStream::visit(std::int64_t begin, std::int64_t end, const Visit& visit) const {
  check<Error>(0 <= begin && begin <= end && end <= size(),
               "tokens {} to {} were asked for, the shards have {}; ask for less", begin, end,
               size());
  auto shard =
      static_cast<std::size_t>(std::upper_bound(ends_.begin(), ends_.end(), begin) - ends_.begin());
  while (begin < end) {
    const std::int64_t last = std::min(end, ends_[shard]);
    const std::int64_t origin = shard > 0 ? ends_[shard - 1] : 0;
    visit(shards_[shard], begin - origin, last - origin);
    begin = last;
    ++shard;
  }
}

void TokenStream::read(std::int64_t begin, std::span<std::int32_t> tokens,
                       std::int64_t vocabulary) const {
  std::int32_t* to = tokens.data();
  visit(begin, begin + static_cast<std::int64_t>(tokens.size()),
        [&](const Shard& shard, std::int64_t first, std::int64_t last) {
          const std::span<const TokenId> part = shard.tokens().subspan(
              static_cast<std::size_t>(first), static_cast<std::size_t>(last - first));
          check_tokens(shard, first, part, vocabulary);
          to = std::copy(part.begin(), part.end(), to);
        });
}

void TokenStream::prefetch(std::int64_t begin, std::int64_t end) const {
  visit(begin, end, [](const Shard& shard, std::int64_t first, std::int64_t last) {
    shard.prefetch(first, last);
  });
}

}  // namespace carope
