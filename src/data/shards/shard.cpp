#include "data/shards/shard.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>

#include "core/error.h"

namespace carope {
namespace {

namespace fs = std::filesystem;

static_assert(std::endian::native == std::endian::little, "shards are mapped as they lie on disk");

using Header = std::array<std::int32_t, kShardHeaderBytes / sizeof(std::int32_t)>;

constexpr std::int32_t byte_swapped(std::int32_t value) {
  auto bytes = std::bit_cast<std::array<std::byte, 4>>(value);
  std::reverse(bytes.begin(), bytes.end());
  return std::bit_cast<std::int32_t>(bytes);
}

/// What a file that is no shard is by its first bytes, with the remedy.
std::string_view foreign_kind(std::span<const std::byte> file) {
  using namespace std::string_view_literals;
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kBeginnings{{
      {"\x1f\x8b"sv, "a gzip file; unpack it first if a shard is inside"},
      {"\x28\xb5\x2f\xfd"sv, "a zstd file; unpack it first if a shard is inside"},
      {"PAR1"sv, "a parquet file of text; make token shards of it first"},
      {"version https://git-lfs"sv, "a Git LFS pointer; fetch the file it stands for"},
      {"<!"sv, "a web page, perhaps of a failed download; fetch the shard again"},
      {"{\""sv, "JSON; name a token shard"},
  }};
  static constexpr std::array<std::pair<std::int32_t, std::string_view>, 5> kMagics{{
      {byte_swapped(kShardMagic), "a shard in big-endian order; swap its bytes"},
      {20240326, "a model of llm.c; name a token shard"},
      {20240327, "a debug state of llm.c; name a token shard"},
      {20240328, "a tokenizer of llm.c; name a token shard"},
      {20240522, "an evaluation set of llm.c; name a token shard"},
  }};
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  for (const auto& [beginning, kind] : kBeginnings) {
    if (text.starts_with(beginning)) {
      return kind;
    }
  }
  std::int32_t magic = 0;
  std::memcpy(&magic, file.data(), std::min(file.size(), sizeof(magic)));
  for (const auto& [known, kind] : kMagics) {
    if (magic == known) {
      return kind;
    }
  }
  return "";
}

/// Some files' names, for a message.
std::string names_of(std::span<const fs::path> paths) {
  constexpr std::size_t kShown = 10;
  std::vector<std::string> names;
  for (const fs::path& path : paths.first(std::min(kShown, paths.size()))) {
    names.push_back(path.filename().string());
  }
  if (paths.size() > kShown) {
    names.push_back(fmt::format("{} more", paths.size() - kShown));
  }
  return names.empty() ? "nothing" : fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

std::string_view to_string(Split split) { return split == Split::kTrain ? "train" : "val"; }

std::int64_t parse_shard_header(std::span<const std::byte> file, const fs::path& path) {
  const std::string name = path.string();
  check<FileError>(!file.empty(), "{} is empty, a token shard is needed; make or fetch it again",
                   name);
  const std::string_view kind = foreign_kind(file);
  check<FileError>(kind.empty(), "{} is no token shard: it begins like {}", name, kind);
  check<FileError>(file.size() >= kShardHeaderBytes,
                   "{} has {} bytes, the header of a token shard alone has {}; make or fetch it "
                   "again, or name another file",
                   name, file.size(), kShardHeaderBytes);
  Header header{};
  std::memcpy(header.data(), file.data(), sizeof(header));
  check<FileError>(header[0] == kShardMagic,
                   "{} is no token shard: at byte 0 it has the magic number {}, expected {}; name "
                   "a file that has llm.c's header (tokens alone have none)",
                   name, header[0], kShardMagic);
  check<FileError>(header[1] == kShardVersion,
                   "{} has version {} at byte 4, only {} can be read{}; make it again with 16 bits "
                   "a token",
                   name, header[1], kShardVersion,
                   header[1] == 7 ? " (7 is llm.c's for Llama 3, with 32 bits a token)" : "");
  const std::int64_t tokens = header[2];
  check<FileError>(tokens > 0,
                   "{} has {} tokens by its header (at byte 8), at least 1 is needed; make or "
                   "fetch it again",
                   name, tokens);
  const auto found = static_cast<std::int64_t>(file.size());
  const std::int64_t expected =
      kShardHeaderBytes + tokens * static_cast<std::int64_t>(sizeof(TokenId));
  check<FileError>(found == expected,
                   "{} is {}: its header (at byte 8) promises {} tokens, that is {} bytes, the "
                   "file has {}; make or fetch it again",
                   name, found < expected ? "truncated" : "too long", tokens, expected, found);
  return tokens;
}

Shard::Shard(fs::path path) : path_(std::move(path)), file_(path_) {
  parse_shard_header(file_.bytes(), path_);
}

std::span<const TokenId> Shard::tokens() const {
  const std::span<const std::byte> bytes = file_.bytes().subspan(kShardHeaderBytes);
  return {reinterpret_cast<const TokenId*>(bytes.data()), bytes.size() / sizeof(TokenId)};
}

void Shard::prefetch(std::int64_t begin, std::int64_t end) const {
  const auto byte_of = [](std::int64_t token) {
    return static_cast<std::size_t>(kShardHeaderBytes) +
           static_cast<std::size_t>(token) * sizeof(TokenId);
  };
  file_.prefetch(byte_of(begin), byte_of(end));
}

ShardWriter::ShardWriter(fs::path path) : path_(std::move(path)), file_(path_) {
  const Header counted_later{};
  file_.write(std::as_bytes(std::span(counted_later)));
}

void ShardWriter::append(std::span<const TokenId> tokens) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  const auto count = static_cast<std::int64_t>(tokens.size());
  check<FileError>(count <= kMost - size_,
                   "{} has {} tokens, {} more are too many: the header can count {}; begin "
                   "another shard",
                   path_.string(), size_, count, kMost);
  file_.write(std::as_bytes(tokens));
  size_ += count;
}

void ShardWriter::commit() {
  check<FileError>(size_ > 0, "{} would have no tokens, which no reader takes; append some first",
                   path_.string());
  const Header header{kShardMagic, kShardVersion, static_cast<std::int32_t>(size_)};
  file_.rewrite(0, std::as_bytes(std::span(header)));
  file_.commit();
}

fs::path shard_path(const fs::path& folder, std::string_view name, Split split,
                    std::int64_t index) {
  return folder / fmt::format("{}_{}_{:06}.bin", name, to_string(split), index);
}

std::optional<Split> split_of(const fs::path& path) {
  const std::string name = path.filename().string();
  const std::size_t train = name.rfind("_train_");
  const std::size_t validation = name.rfind("_val_");
  if (!name.ends_with(".bin") || train == validation) {  // both npos
    return std::nullopt;
  }
  // Of two words the last one counts, so that no file is in both splits.
  const bool trains =
      validation == std::string::npos || (train != std::string::npos && train > validation);
  return trains ? Split::kTrain : Split::kValidation;
}

std::vector<fs::path> list_shards(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> paths;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    paths.push_back(entry->path());
  }
  check<FileError>(!error, "cannot list the folder {}: {}; check the path and the permissions",
                   folder.string(), error.message());
  std::sort(paths.begin(), paths.end());
  std::vector<fs::path> shards = paths;
  std::erase_if(shards, [](const fs::path& path) { return !split_of(path); });
  check<FileError>(!shards.empty(),
                   "the folder {} has no shards named *_train_*.bin or *_val_*.bin; it has {}; "
                   "name another folder, or one file",
                   folder.string(), names_of(paths));
  return shards;
}

std::vector<fs::path> find_shards(const fs::path& folder_or_file, Split split) {
  std::error_code ignored;
  if (!fs::is_directory(folder_or_file, ignored)) {
    require_file(folder_or_file);
    return {folder_or_file};
  }
  const std::vector<fs::path> all = list_shards(folder_or_file);
  std::vector<fs::path> shards = all;
  std::erase_if(shards, [&](const fs::path& path) { return split_of(path) != split; });
  check<FileError>(!shards.empty(),
                   "the folder {} has no shards named *_{}_*.bin; it has {}; name another folder, "
                   "or one file",
                   folder_or_file.string(), to_string(split), names_of(all));
  return shards;
}

}  // namespace carope
