#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <memory>

#include "cli/commands.h"
#include "cli/options.h"
#include "data/fetch/cache.h"
#include "data/shards/inspect.h"
#include "data/shards/manifest.h"
#include "data/shards/shard.h"
#include "data/tokenizer/tokenizer.h"
#include "report/table.h"

namespace carope {
namespace {

namespace fs = std::filesystem;

struct DataInspectOptions {
  fs::path path;
  std::string tokenizer;
  std::int64_t documents = 5;
};

/// How a shard's tokens are to be read.
struct Reading {
  std::string source;  // where this is known from
  std::optional<TokenId> end_of_text;
  std::function<std::string(std::span<const TokenId>)> text;
};

/// By the tokenizer that is named or lies beside the shard, or else as ready-made GPT-2 shards are.
Reading reading_of(const DataInspectOptions& options, const Shard& shard) {
  const auto numbers = [](std::span<const TokenId> ids) {
    return fmt::format("{}", fmt::join(ids, " "));
  };
  const fs::path beside = options.path.parent_path() / "tokenizer";
  if (options.tokenizer.empty() && !fs::exists(beside)) {
    return {"GPT-2's, assumed where it occurs", guess_end_of_text(shard.tokens()), numbers};
  }
  const fs::path path = options.tokenizer.empty() ? beside : tokenizer_path(options.tokenizer);
  const auto tokenizer = std::make_shared<Tokenizer>(Tokenizer::load(path));
  const auto tokens = shard.tokens();
  if (*std::max_element(tokens.begin(), tokens.end()) >= tokenizer->size()) {
    return {fmt::format("{} has only {} tokens and did not make this shard", path.string(),
                        tokenizer->size()),
            std::nullopt, numbers};
  }
  return {path.string(), tokenizer->end_of_text(),
          [tokenizer](std::span<const TokenId> ids) { return one_line(tokenizer->decode(ids)); }};
}

void show_histogram(const TokenStatistics& statistics) {
  constexpr std::int64_t kWidest = 50;
  const std::vector<TokenStatistics::Bin> bins = statistics.histogram();
  std::int64_t most = 1;
  for (const auto& bin : bins) {
    most = std::max(most, bin.documents);
  }
  fmt::print("\n{:>24} {:>10}\n", "tokens of a document", "documents");
  for (const auto& [lowest, highest, documents] : bins) {
    fmt::print("{:>24} {:>10} {:#<{}}\n",
               lowest == highest ? fmt::to_string(lowest) : fmt::format("{} - {}", lowest, highest),
               documents, "", (documents * kWidest + most - 1) / most);
  }
}

void show_beginning(const Reading& reading, const Shard& shard, std::span<const TokenId> tokens) {
  constexpr std::size_t kShown = 32;
  fmt::print("\nfrom token {}:\n  {}{}\n", tokens.data() - shard.tokens().data(),
             reading.text(tokens.first(std::min(kShown, tokens.size()))),
             tokens.size() > kShown ? " ..." : "");
}

void inspect_shard(const DataInspectOptions& options) {
  const Shard shard(options.path);
  const Reading reading = reading_of(options, shard);
  const TokenStatistics statistics =
      count_tokens(shard.tokens(), reading.end_of_text, options.documents);
  fmt::print("{}\nheader: magic {}, version {}, {} tokens of {} bits\nhighest id: {}\n",
             options.path.string(), kShardMagic, kShardVersion, statistics.tokens,
             8 * sizeof(TokenId), statistics.highest);
  fmt::print("end-of-text id: {} ({})\n",
             reading.end_of_text ? fmt::to_string(*reading.end_of_text) : "unknown",
             reading.source);
  fmt::print("documents: {}{}\n",
             reading.end_of_text ? fmt::to_string(statistics.documents) : "unknown",
             statistics.begins_inside ? ", the first begins before this shard" : "");
  if (statistics.documents > 0) {
    fmt::print("tokens of a document: mean {:.1f}, median {}, longest {}\n",
               statistics.mean_length(), statistics.median_length(), statistics.longest());
    show_histogram(statistics);
  }
  for (const std::span<const TokenId> document : statistics.first_documents) {
    show_beginning(reading, shard, document);
  }
  if (!reading.end_of_text) {
    show_beginning(reading, shard, shard.tokens());
  }
}

void inspect_folder(const fs::path& folder) {
  const std::vector<fs::path> shards = list_shards(folder);
  Table table({"shard", "split", "tokens"});
  std::size_t tokens = 0;
  for (const fs::path& path : shards) {
    const std::size_t count = Shard(path).tokens().size();
    table.add(
        {path.filename().string(), std::string(to_string(*split_of(path))), fmt::to_string(count)});
    tokens += count;
  }
  fmt::print("{}\n{} shards, {} tokens\n", table.text(), shards.size(), tokens);
  if (const auto manifest = Manifest::load(folder)) {
    fmt::print("\nmanifest: {}, {} inputs, vocabulary {}, end of text {}, tokenizer {:.12}\n",
               manifest->complete ? "complete" : "NOT COMPLETE, prepare has not finished",
               manifest->inputs.size(), manifest->vocabulary, manifest->end_of_text,
               manifest->tokenizer_sha256);
    for (const Manifest::Input& input : manifest->inputs) {
      fmt::print("  {}\n", input.path);
    }
  }
}

}  // namespace

void add_data_inspect(CLI::App& data) {
  CLI::App* command =
      data.add_subcommand("inspect", "Shows what a token shard, or a folder of them, holds");
  auto options = std::make_shared<DataInspectOptions>();
  command->add_option("path", options->path, "a shard, or a folder of shards")->required();
  command->add_option("--tokenizer", options->tokenizer,
                      "the tokenizer that made the shard; by default the folder tokenizer/ beside "
                      "it, if there is one");
  command->add_option("--documents", options->documents, "how many documents' beginnings to show")
      ->check(at_least(0))
      ->capture_default_str();
  command->callback([options] {
    if (std::filesystem::is_directory(options->path)) {
      inspect_folder(options->path);
    } else {
      inspect_shard(*options);
    }
  });
}

}  // namespace carope
