#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "data/tokenizer/encoder.h"
#include "data/tokenizer/tokenizer.h"
#include "support/corpus_files.h"
#include "support/folder.h"

// What should come out of preparing a corpus, the simplest way, and what did.
namespace carope::test {

inline const std::string kSmallTokenizer = CAROPE_SOURCE_DIR "/tests/data/small/tokenizer.json";
inline constexpr TokenId kSmallEndOfText = 1023;

/// The tokens of documents by the small tokenizer, each behind an end of text.
inline std::vector<TokenId> tokens_of(const Texts& documents) {
  const Tokenizer tokenizer = Tokenizer::load(kSmallTokenizer);
  std::vector<TokenId> tokens;
  for (const std::string& document : documents) {
    tokens.push_back(kSmallEndOfText);
    Encoder(tokenizer).encode(document, tokens);
  }
  return tokens;
}

/// A shard's tokens, read as llm.c's loader does: a header of 256 ints whose first three are magic,
/// version and number of tokens, then nothing but the tokens.
inline std::vector<TokenId> read_like_llmc(const std::filesystem::path& path) {
  const std::unique_ptr<FILE, decltype(&std::fclose)> file(std::fopen(path.c_str(), "rb"),
                                                           &std::fclose);
  std::int32_t header[256] = {};
  if (!file || std::fread(header, sizeof(std::int32_t), 256, file.get()) != 256) {
    ADD_FAILURE() << path << " has no header";
    return {};
  }
  EXPECT_EQ(header[0], 20240520) << path;
  EXPECT_EQ(header[1], 1) << path;
  EXPECT_GT(header[2], 0) << path;
  const auto count = static_cast<std::size_t>(std::max(header[2], 0));
  std::fseek(file.get(), 0, SEEK_END);
  EXPECT_EQ(std::ftell(file.get()), static_cast<long>(1024 + 2 * count)) << path;
  std::fseek(file.get(), 1024, SEEK_SET);
  std::vector<TokenId> tokens(count);
  EXPECT_EQ(std::fread(tokens.data(), sizeof(TokenId), count, file.get()), count) << path;
  return tokens;
}

struct PreparedShard {
  std::string name;
  std::vector<TokenId> tokens;

  bool validates() const { return name.find("_val_") != std::string::npos; }
  std::int64_t size() const { return static_cast<std::int64_t>(tokens.size()); }
  std::int64_t documents() const {
    return std::count(tokens.begin(), tokens.end(), kSmallEndOfText);
  }
};

/// The shards of a folder in the order of their numbers, which go from 0 on without a gap.
inline std::vector<PreparedShard> shards_of(const std::filesystem::path& folder) {
  std::map<std::string, std::string> names;  // by number
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(".bin")) {
      EXPECT_TRUE(names.emplace(name.substr(name.size() - 10, 6), name).second) << name;
    }
  }
  std::vector<PreparedShard> shards;
  for (const auto& [number, name] : names) {
    EXPECT_EQ(number, fmt::format("{:06}", shards.size())) << name;
    shards.push_back({name, read_like_llmc(folder / name)});
  }
  return shards;
}

inline std::vector<TokenId> joined(const std::vector<PreparedShard>& shards) {
  std::vector<TokenId> tokens;
  for (const PreparedShard& shard : shards) {
    tokens.insert(tokens.end(), shard.tokens.begin(), shard.tokens.end());
  }
  return tokens;
}

inline std::vector<std::int64_t> sizes_of(const std::vector<PreparedShard>& shards) {
  std::vector<std::int64_t> sizes;
  for (const PreparedShard& shard : shards) {
    sizes.push_back(shard.size());
  }
  return sizes;
}

/// Which file something is, and when it was written last.
using Identity = std::pair<ino_t, std::pair<time_t, long>>;
inline Identity identity_of(const std::filesystem::path& path) {
  struct stat status {};
  EXPECT_EQ(stat(path.c_str(), &status), 0) << path;
  return {status.st_ino, {status.st_mtim.tv_sec, status.st_mtim.tv_nsec}};
}

/// All files of a folder, not those in folders in it.
inline std::map<std::string, Identity> identities_in(const std::filesystem::path& folder) {
  std::map<std::string, Identity> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.is_regular_file()) {
      files.emplace(entry.path().filename().string(), identity_of(entry.path()));
    }
  }
  return files;
}

/// Documents of random words, of many lengths, without newlines at their ends.
inline Texts random_documents(std::size_t count, std::size_t longest = 700) {
  Texts documents;
  for (std::size_t i = 0; i < count; ++i) {
    documents.push_back("The cat " + random_text(i * i * 37 % longest, i) + " mat.");
  }
  return documents;
}

inline std::string lines_of_json(const Texts& documents) {
  std::string lines;
  for (const std::string& document : documents) {
    lines += nlohmann::json{{"id", lines.size()}, {"text", document}}.dump() + "\n";
  }
  return lines;
}

}  // namespace carope::test
