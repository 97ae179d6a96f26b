// Any bytes are a shard or they are not, as the format says; what is one can be read and counted.
//
// The rest of an input is the file, if the first byte is even; if it is odd, without the header's
// zeros, so that inputs can be small.
#include <algorithm>
#include <cstring>

#include "data/shards/inspect.h"
#include "data/shards/shard.h"
#include "support.h"
#include "support/folder.h"

namespace carope::fuzz {
namespace {

constexpr const char* kName = "fuzzed_val_000000.bin";

/// The number of tokens if these bytes are a shard, by the definition of the format; else 0.
std::int64_t tokens_by_definition(std::string_view file) {
  std::int32_t header[3] = {};
  if (file.size() < kShardHeaderBytes) {
    return 0;
  }
  std::memcpy(header, file.data(), sizeof header);
  const bool right = header[0] == kShardMagic && header[1] == kShardVersion && header[2] > 0 &&
                     file.size() == kShardHeaderBytes + 2 * static_cast<std::uint64_t>(header[2]);
  return right ? header[2] : 0;
}

void count(std::span<const TokenId> tokens, std::optional<TokenId> end_of_text) {
  constexpr std::int64_t kKept = 3;
  const TokenStatistics statistics = count_tokens(tokens, end_of_text, kKept);
  require(statistics.tokens == static_cast<std::int64_t>(tokens.size()), "all tokens count");
  require(std::find(tokens.begin(), tokens.end(), statistics.highest) != tokens.end(),
          "the highest token occurs");
  const auto ends = end_of_text ? std::count(tokens.begin(), tokens.end(), *end_of_text) : 0;
  require(statistics.documents == ends + (statistics.begins_inside ? 1 : 0),
          "a document begins at each end of text and, perhaps, before the first");
  std::int64_t documents = 0;
  std::int64_t length_of_all = 0;
  for (const auto& [length, number] : statistics.lengths) {
    documents += number;
    length_of_all += length * number;
  }
  require(documents == statistics.documents, "each document has a length");
  require(documents == 0 || length_of_all == statistics.tokens, "the lengths sum to the tokens");
  require(documents == 0 || statistics.lengths.contains(statistics.median_length()),
          "some document has the median length");
  std::int64_t in_bins = 0;
  for (const TokenStatistics::Bin& bin : statistics.histogram()) {
    require(bin.lowest <= bin.highest && bin.highest / 2 < bin.lowest, "bins are powers of two");
    in_bins += bin.documents;
  }
  require(in_bins == documents, "each document is in a bin");
  auto at = tokens.begin();
  for (const std::span<const TokenId> document : statistics.first_documents) {
    require(std::equal(document.begin(), document.end(), at), "the first documents follow on");
    at += static_cast<std::ptrdiff_t>(document.size());
  }
  require(
      static_cast<std::int64_t>(statistics.first_documents.size()) == std::min(kKept, documents),
      "the first documents are kept");
}

void run(const std::string& file) {
  const std::int64_t expected = tokens_by_definition(file);
  std::int64_t tokens = 0;
  const bool accepted =
      accepts(kName, [&] { tokens = parse_shard_header(std::as_bytes(std::span(file)), kName); });
  require(accepted == (expected > 0), "what is a shard, and nothing else, is accepted");
  require(tokens == expected, "the header tells the number of tokens");
  if (accepted) {
    static const test::TemporaryFolder kFolder;
    const Shard shard(test::write_bytes(kFolder / kName, file));
    const std::span<const TokenId> read = shard.tokens();
    require(std::memcmp(read.data(), file.data() + kShardHeaderBytes, read.size_bytes()) == 0 &&
                static_cast<std::int64_t>(read.size()) == tokens,
            "the tokens are those of the file");
    shard.prefetch(0, tokens);
    count(read, std::nullopt);
    count(read, read.back());
    count(read, guess_end_of_text(read));
  }
  for (const char c : one_line(file)) {
    require(static_cast<unsigned char>(c) >= 0x20 && c != 0x7f, "one line has nothing to act on");
  }
}

std::string with_zeros(std::string_view file) {
  constexpr std::size_t kNumbers = 12;
  std::string filled(file);
  filled.insert(std::min(kNumbers, file.size()), kShardHeaderBytes - kNumbers, '\0');
  return filled;
}

}  // namespace
}  // namespace carope::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace carope::fuzz;
  if (size > 0) {
    const std::string_view file = text_of(data + 1, size - 1);
    run(data[0] % 2 == 0 ? std::string(file) : with_zeros(file));
  }
  return 0;
}
