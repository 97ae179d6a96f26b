#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "data/fetch/download.h"

namespace carope {

/// Files that belong together, where they come from and the folder they go to.
struct RemoteFiles {
  std::filesystem::path folder;
  std::vector<Download> files{};
  std::size_t offered = 0;  // files there are, of which `files` may be the first

  std::int64_t bytes() const;
};

/// Where the files of GPT-2's tokenizer are.
inline constexpr const char* kGpt2Url =
    "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main";
/// Where datasets are.
inline constexpr const char* kHuggingFaceUrl = "https://huggingface.co";
/// How many tokens of GPT-2 sample-10BT of FineWeb-Edu holds, about.
inline constexpr std::int64_t kFinewebEduTokens = 10'000'000'000;

/// GPT-2's merges and vocabulary: vocab.bpe and encoder.json.
RemoteFiles gpt2_tokenizer(const std::filesystem::path& cache, const std::string& base_url);

/// The Parquet files of FineWeb-Edu's sample-10BT, or the first of them that surely hold `tokens`.
/// Fetches their list from the endpoint.
RemoteFiles fineweb_edu(const std::filesystem::path& cache, const std::string& endpoint,
                        std::optional<std::int64_t> tokens, const DownloadOptions& options = {});

/// Downloads those files that are not there, if the disk has room for them.
void fetch(const RemoteFiles& remote, const DownloadOptions& options = {});

}  // namespace carope
