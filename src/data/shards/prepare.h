#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "data/corpus/corpus.h"
#include "data/shards/manifest.h"
#include "data/shards/shard.h"

namespace carope {

/// From text to token shards.
struct PrepareConfig {
  std::vector<std::filesystem::path> inputs;
  /// Files whose documents are for validation. If there are any, all others are for training;
  /// otherwise the first shard is for validation.
  std::vector<std::filesystem::path> validation;
  std::filesystem::path tokenizer;
  std::filesystem::path folder;  // for the shards
  std::string name;              // of the shards; empty: the folder's
  CorpusFormat format;
  std::int64_t shard_tokens = kShardTokens;
  std::int64_t validation_tokens = 0;  // of the first shard; 0: as many as any shard
  std::int64_t most_tokens = 0;        // in all; 0: no bound
  int threads = 0;                     // 0: all
  bool overwrite = false;              // whatever is in the folder
};

/// Encodes the inputs, in order, an end-of-text token before every document, and writes shards, a
/// manifest and a copy of the tokenizer. Called again after it was interrupted, it goes on behind
/// the last finished shard; if all is done, it does nothing. The shards do not depend on the number
/// of threads. A corpus that does not fill the validation shard gives a tenth to validation.
Manifest prepare(const PrepareConfig& config);

}  // namespace carope
