#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "core/file.h"
#include "data/token.h"

namespace carope {

// A shard is a file of tokens as llm.c reads and writes it: a header of 256 little-endian int32
// (magic, version, number of tokens, zeros), then 16 bits a token.
inline constexpr std::int32_t kShardMagic = 20240520;
inline constexpr std::int32_t kShardVersion = 1;
inline constexpr std::int64_t kShardHeaderBytes = 1024;
/// Tokens of a full shard. A reader takes any number.
inline constexpr std::int64_t kShardTokens = 100'000'000;

enum class Split : std::uint8_t { kTrain, kValidation };
/// As file names have it: "train" or "val".
std::string_view to_string(Split split);

/// The number of tokens that a shard's header promises. Throws a FileError that names `path` unless
/// these bytes, all of a file, are a shard with that many.
std::int64_t parse_shard_header(std::span<const std::byte> file, const std::filesystem::path& path);

/// A shard to read.
class Shard {
 public:
  explicit Shard(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }
  std::span<const TokenId> tokens() const;
  /// Asks the operating system to read tokens [begin, end) ahead of their use.
  void prefetch(std::int64_t begin, std::int64_t end) const;

 private:
  std::filesystem::path path_;
  MappedFile file_;
};

/// A shard to write, which appears under its name when `commit` has put all of it on disk.
class ShardWriter {
 public:
  explicit ShardWriter(std::filesystem::path path);

  void append(std::span<const TokenId> tokens);
  /// Tokens so far.
  std::int64_t size() const { return size_; }
  void commit();

 private:
  std::filesystem::path path_;
  FileWriter file_;
  std::int64_t size_ = 0;
};

/// The name that llm.c's scripts give a shard, e.g. FOLDER/edu_fineweb_train_000001.bin.
std::filesystem::path shard_path(const std::filesystem::path& folder, std::string_view name,
                                 Split split, std::int64_t index);

/// The split of a shard by its name, *_train_*.bin or *_val_*.bin.
std::optional<Split> split_of(const std::filesystem::path& path);

/// A folder's shards of both splits in the order of their names. Throws if there are none.
std::vector<std::filesystem::path> list_shards(const std::filesystem::path& folder);

/// A split's shards: a folder's, of which there must be some, or the one file that is named.
std::vector<std::filesystem::path> find_shards(const std::filesystem::path& folder_or_file,
                                               Split split);

}  // namespace carope
