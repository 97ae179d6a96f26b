#include "data/fetch/remote.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/file.h"
#include "core/json.h"
#include "core/progress.h"

namespace carope {
namespace {

using nlohmann::json;

constexpr const char* kSample = "sample/10BT";
constexpr std::int64_t kLargestFile = 1'000'000'000'000'000;
constexpr const char* kCheckEndpoint =
    "check that the endpoint (HF_ENDPOINT, --base-url) is Hugging Face's or a mirror of it";

std::string without_slash(std::string url) {
  while (url.ends_with('/')) {
    url.pop_back();
  }
  return url;
}

std::int64_t size_of(const std::filesystem::path& path) {
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  return error ? 0 : static_cast<std::int64_t>(size);
}

/// A member of an object in the listing, e.g. "/lfs/oid".
template <class T>
T member(const json& entry, const char* pointer, std::size_t index, const std::string& url) {
  try {
    return entry.at(json::json_pointer(pointer)).get<T>();
  } catch (const json::exception& error) {
    throw DownloadError(fmt::format("entry {} of the listing {} has no usable '{}' ({}); {}", index,
                                    url, pointer, error.what(), kCheckEndpoint));
  }
}

bool is_sha256(const std::string& text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

/// The Parquet files of a listing as Hugging Face's tree API writes it, in order of their names.
std::vector<Download> parse_listing(const std::string& text, const std::string& url,
                                    const std::string& files_url,
                                    const std::filesystem::path& folder) {
  const json listing = parse_json<json>(text, "the listing " + url, /*allow_exceptions=*/false);
  check<DownloadError>(listing.is_array(),
                       "the listing {} is not a JSON array but begins with '{}'; {}", url,
                       text.substr(0, 60), kCheckEndpoint);
  std::vector<Download> files;
  for (std::size_t i = 0; i < listing.size(); ++i) {
    const auto path = member<std::string>(listing[i], "/path", i, url);
    const std::string name = std::filesystem::path(path).filename();
    if (member<std::string>(listing[i], "/type", i, url) != "file" || !name.ends_with(".parquet")) {
      continue;
    }
    Download file{.url = files_url + "/" + path,
                  .path = folder / name,
                  .bytes = member<std::int64_t>(listing[i], "/size", i, url),
                  .sha256 = member<std::string>(listing[i], "/lfs/oid", i, url)};
    check<DownloadError>(*file.bytes > 0 && *file.bytes <= kLargestFile && is_sha256(file.sha256),
                         "entry {} of the listing {} says of {}: {} bytes with SHA-256 '{}', which "
                         "cannot be; {}",
                         i, url, path, *file.bytes, file.sha256, kCheckEndpoint);
    files.push_back(std::move(file));
  }
  check<DownloadError>(!files.empty(), "the listing {} names no Parquet file; {}", url,
                       kCheckEndpoint);
  std::sort(files.begin(), files.end(),
            [](const Download& a, const Download& b) { return a.path < b.path; });
  return files;
}

}  // namespace

std::int64_t RemoteFiles::bytes() const {
  std::int64_t sum = 0;
  for (const Download& file : files) {
    sum += file.bytes.value_or(0);
  }
  return sum;
}

RemoteFiles gpt2_tokenizer(const std::filesystem::path& cache, const std::string& base_url) {
  const std::string base = without_slash(base_url) + "/";
  const std::filesystem::path folder = cache / "tokenizers" / "gpt2";
  std::vector<Download> files{
      {.url = base + "vocab.bpe",
       .path = folder / "vocab.bpe",
       .bytes = 456318,
       .sha256 = "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"},
      {.url = base + "encoder.json",
       .path = folder / "encoder.json",
       .bytes = 1042301,
       .sha256 = "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783"}};
  const std::size_t offered = files.size();
  return {.folder = folder, .files = std::move(files), .offered = offered};
}

RemoteFiles fineweb_edu(const std::filesystem::path& cache, const std::string& endpoint,
                        std::optional<std::int64_t> tokens, const DownloadOptions& options) {
  check<ConfigError>(tokens.value_or(1) > 0 && tokens.value_or(1) <= kFinewebEduTokens,
                     "--tokens {}: sample-10BT has about {} tokens; give 1 to {}, or leave it out "
                     "for all",
                     tokens.value_or(1), kFinewebEduTokens, kFinewebEduTokens);
  const std::string base = without_slash(endpoint);
  const std::string dataset = "datasets/HuggingFaceFW/fineweb-edu";
  const std::string listing_url = fmt::format("{}/api/{}/tree/main/{}", base, dataset, kSample);
  RemoteFiles remote{.folder = cache / "datasets" / "fineweb-edu" / "sample-10BT"};

  // What the server lists today and not what it listed the last time.
  const std::filesystem::path listing = remote.folder / "listing.json";
  std::error_code error;
  std::filesystem::remove(listing, error);
  download({.url = listing_url, .path = listing}, options);
  remote.files = parse_listing(read_file(listing), listing_url,
                               fmt::format("{}/{}/resolve/main", base, dataset), remote.folder);
  remote.offered = remote.files.size();
  if (tokens) {
    constexpr double kMargin = 1.05;  // files of the same size differ a little in tokens
    const double bytes = kMargin * static_cast<double>(remote.bytes()) *
                         static_cast<double>(*tokens) / static_cast<double>(kFinewebEduTokens);
    double held = 0.0;
    const auto end = std::find_if(remote.files.begin(), remote.files.end(), [&](const auto& file) {
      return std::exchange(held, held + static_cast<double>(*file.bytes)) >= bytes;
    });
    remote.files.erase(end, remote.files.end());
  }
  return remote;
}

void fetch(const RemoteFiles& remote, const DownloadOptions& options) {
  make_folder(remote.folder);
  std::int64_t missing = 0;
  for (const Download& file : remote.files) {
    const std::int64_t held = std::max(size_of(file.path), size_of(file.path.string() + ".part"));
    missing += std::max<std::int64_t>(file.bytes.value_or(0) - held, 0);
  }
  std::error_code error;
  const auto space = std::filesystem::space(remote.folder, error);
  check<FileError>(error || missing <= static_cast<std::int64_t>(space.available),
                   "{} are to be fetched into {}, where {} are free; free some space, choose "
                   "another folder (CAROPE_CACHE, --cache) or fetch less",
                   si(static_cast<double>(missing), "B"), remote.folder.string(),
                   si(static_cast<double>(space.available), "B"));
  for (const Download& file : remote.files) {
    download(file, options);
  }
}

}  // namespace carope
