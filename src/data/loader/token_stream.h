#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "data/shards/shard.h"

namespace carope {

/// Shards one after another, as one stream of tokens.
class TokenStream {
 public:
  explicit TokenStream(const std::vector<std::filesystem::path>& shards);

  /// Tokens of all shards.
  std::int64_t size() const { return ends_.empty() ? 0 : ends_.back(); }
  const std::vector<Shard>& shards() const { return shards_; }

  /// Copies the tokens from `begin` on. Throws a FileError that names the shard and the place if
  /// one of them is not below `vocabulary`.
  void read(std::int64_t begin, std::span<std::int32_t> tokens, std::int64_t vocabulary) const;
  /// Asks the operating system to read tokens [begin, end) ahead of their use.
  void prefetch(std::int64_t begin, std::int64_t end) const;

 private:
  template <class Visit>
  void visit(std::int64_t begin, std::int64_t end, const Visit& visit) const;

  std::vector<Shard> shards_;
  std::vector<std::int64_t> ends_;  // of each shard in the stream
};

}  // namespace carope
