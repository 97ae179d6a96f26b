#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "data/shards/manifest.h"
#include "data/shards/shard.h"
#include "data/token.h"

namespace carope {

/// A batch of a corpus as tokens.
struct EncodedBatch {
  CorpusPlace first;          // token 0 of its first piece
  std::int64_t position = 0;  // bytes of the corpus read so far
  std::vector<TokenId> ids;
  std::vector<std::int64_t> ends;    // of each piece in `ids`
  std::vector<std::int64_t> starts;  // of documents in `ids`

  std::int64_t size() const { return static_cast<std::int64_t>(ids.size()); }
  /// Where token `offset` of `ids` is in the corpus.
  CorpusPlace place(std::int64_t offset) const;
  /// Documents that begin in tokens [begin, end).
  std::int64_t documents(std::int64_t begin, std::int64_t end) const;
};

/// Cuts a stream of tokens into shards and keeps the manifest.
class ShardCutter {
 public:
  /// Goes on behind the shards that the manifest has.
  ShardCutter(std::filesystem::path folder, Manifest manifest);

  const Manifest& manifest() const { return manifest_; }
  void save() const { manifest_.save(folder_); }
  std::int64_t written() const { return written_; }
  /// Whether there are as many tokens as are wanted.
  bool full() const { return manifest_.most_tokens > 0 && written_ >= manifest_.most_tokens; }

  /// Notes the digest of an input; any thread.
  void note_input(std::size_t input, const std::string& digest);
  /// Writes the tokens of a batch from `offset` on.
  void append(const EncodedBatch& batch, std::int64_t offset);
  /// Ends the last shard. A corpus that has filled no shard for training is divided.
  Manifest complete();

 private:
  bool has_validation_inputs() const { return manifest_.inputs.front().validation; }
  Split split() const { return shard_.split; }
  std::int64_t capacity() const;
  /// The split of tokens that come now, from this place.
  Split split_at(const CorpusPlace& place) const;
  void open(Split split);
  void finish(const CorpusPlace& end);
  void divide_only_shard();

  std::filesystem::path folder_;
  Manifest manifest_;
  std::mutex noting_;
  std::int64_t written_ = 0;
  std::unique_ptr<ShardWriter> writer_;
  Manifest::Output shard_;  // the one being written
  CorpusPlace end_;
};

}  // namespace carope
