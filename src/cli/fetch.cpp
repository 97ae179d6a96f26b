#include <fmt/format.h>

#include <memory>

#include "cli/commands.h"
#include "cli/options.h"
#include "core/progress.h"
#include "data/corpus/parquet.h"
#include "data/fetch/cache.h"
#include "data/fetch/remote.h"

namespace carope {
namespace {

struct FetchOptions {
  std::string name, base_url;
  std::filesystem::path cache;
  std::int64_t tokens = 0;  // 0: all

  std::filesystem::path folder() const { return cache.empty() ? cache_folder() : cache; }
};

CLI::App* add_fetch(CLI::App& parent, const char* description, const char* name,
                    const std::shared_ptr<FetchOptions>& options) {
  CLI::App* command = parent.add_subcommand("fetch", description);
  command->add_option("name", options->name, "which")
      ->required()
      ->check(CLI::IsMember(std::vector<std::string>{name}));
  command->add_option("--cache", options->cache,
                      "folder for fetched files; default: $CAROPE_CACHE, else "
                      "$XDG_CACHE_HOME/carope, else ~/.cache/carope");
  return command;
}

/// Announces what is fetched, fetches it and tells where it is.
void run(const std::string& title, const RemoteFiles& remote) {
  fmt::print("{}: fetching {} of {} files, {}, into {}\n", title, remote.files.size(),
             remote.offered, si(static_cast<double>(remote.bytes()), "B"), remote.folder.string());
  std::fflush(stdout);
  fetch(remote);
  fmt::print("complete and checked: {}\n", remote.folder.string());
}

void print_next_command(const FetchOptions& options, const RemoteFiles& remote) {
  fmt::print(
      "\nNext, turn it into tokens (once there is a tokenizer: carope tokenizer fetch "
      "gpt2):\n\n  carope data prepare --tokenizer gpt2 --out {}",
      options.name);
  if (options.tokens > 0) {
    fmt::print(" --tokens {}", options.tokens);
  }
  for (const Download& file : remote.files) {
    fmt::print(" '{}'", file.path.string());
  }
  fmt::print("\n");
}

}  // namespace

void add_tokenizer_fetch(CLI::App& tokenizer) {
  auto options = std::make_shared<FetchOptions>();
  options->base_url = kGpt2Url;
  CLI::App* command = add_fetch(tokenizer, "Downloads a tokenizer's files", "gpt2", options);
  command->add_option("--base-url", options->base_url, "where vocab.bpe and encoder.json are")
      ->envname("CAROPE_GPT2_URL")
      ->capture_default_str();
  command->callback(
      [options] { run(options->name, gpt2_tokenizer(options->folder(), options->base_url)); });
}

void add_data_fetch(CLI::App& data) {
  auto options = std::make_shared<FetchOptions>();
  options->base_url = kHuggingFaceUrl;
  CLI::App* command =
      add_fetch(data, "Downloads a dataset: FineWeb-Edu's sample-10BT, 10 B tokens of GPT-2",
                "fineweb-edu", options);
  command->add_option("--base-url", options->base_url, "Hugging Face, or a mirror of it")
      ->envname("HF_ENDPOINT")
      ->capture_default_str();
  command
      ->add_option("--tokens", options->tokens,
                   "only the files that hold the first so many tokens, e.g. 500M; suffixes k, M, B")
      ->transform(as_quantity());
  command->callback([options] {
    const auto tokens = options->tokens > 0 ? std::optional(options->tokens) : std::nullopt;
    if (!reads_parquet()) {
      fmt::print(
          "These are Parquet files, and this build reads none: before you prepare them, {}.\n",
          kHowToReadParquet);
    }
    const RemoteFiles remote = fineweb_edu(options->folder(), options->base_url, tokens);
    run("fineweb-edu sample-10BT", remote);
    print_next_command(*options, remote);
  });
}

}  // namespace carope
