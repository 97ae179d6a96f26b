#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "data/corpus/corpus.h"
#include "data/shards/shard.h"

namespace carope {

/// Where in the inputs something begins: a token of a piece of a file.
struct CorpusPlace {
  std::int64_t input = 0;
  std::int64_t piece = 0;
  std::int64_t token = 0;
  friend bool operator==(const CorpusPlace&, const CorpusPlace&) = default;
};

/// What was made of which files, and how: kept as manifest.json beside the shards.
struct Manifest {
  struct Input {
    std::string path;
    bool validation = false;  // its documents are for validation only
    std::int64_t bytes = 0;
    std::string sha256;  // once it has been opened
  };
  struct Output {
    std::string file;
    Split split = Split::kTrain;
    std::int64_t tokens = 0;
    std::int64_t documents = 0;  // that begin in it
    CorpusPlace end{};           // where the next shard begins
  };

  bool complete = false;
  std::string name;  // of the shards
  std::string tokenizer_sha256;
  std::int64_t vocabulary = 0;
  std::int64_t end_of_text = 0;
  CorpusFormat format;
  std::int64_t shard_tokens = 0;
  std::int64_t validation_tokens = 0;
  std::int64_t most_tokens = 0;  // 0: all
  std::vector<Input> inputs;
  std::vector<Output> shards;

  std::int64_t tokens(Split split) const;
  std::int64_t documents(Split split) const;

  /// Inputs, from the first on, that have gone into the shards.
  std::size_t used_inputs() const;

  /// The first setting that differs, in words, if the shards are not a beginning of the work that
  /// `other` describes.
  std::optional<std::string> difference(const Manifest& other) const;

  void save(const std::filesystem::path& folder) const;
  /// The manifest of a folder, if it has one.
  static std::optional<Manifest> load(const std::filesystem::path& folder);
};

}  // namespace carope
