#include <fmt/format.h>

#include <memory>

#include "cli/commands.h"
#include "cli/options.h"
#include "core/progress.h"
#include "data/fetch/cache.h"
#include "data/shards/prepare.h"

namespace carope {
namespace {

void print_split(const Manifest& manifest, Split split, const char* purpose) {
  std::int64_t shards = 0;
  for (const Manifest::Output& shard : manifest.shards) {
    shards += shard.split == split ? 1 : 0;
  }
  fmt::print("{}: {}, {} documents, {} shards\n", purpose,
             si(static_cast<double>(manifest.tokens(split)), "tokens"), manifest.documents(split),
             shards);
}

}  // namespace

void add_data_prepare(CLI::App& data) {
  CLI::App* command = data.add_subcommand(
      "prepare",
      "Encodes text into token shards that llm.c reads too; goes on where it was stopped");
  const auto config = std::make_shared<PrepareConfig>();
  const auto tokenizer = std::make_shared<std::string>("gpt2");
  add_tokenizer_option(*command, *tokenizer)->capture_default_str();
  command->add_option("--out", config->folder, "folder for the shards")->required();
  command->add_option("--name", config->name,
                      "beginning of the shards' names; by default the folder's");
  command
      ->add_option("--val", config->validation,
                   "files whose documents are for validation; by default the first shard is "
                   "(of a corpus that does not fill it, a tenth)")
      ->allow_extra_args(false);
  command->add_option("--shard-tokens", config->shard_tokens, "tokens a shard")
      ->transform(as_quantity())
      ->capture_default_str();
  command
      ->add_option("--val-tokens", config->validation_tokens,
                   "tokens of the validation shard; by default as many as any shard")
      ->transform(as_quantity())
      ->excludes("--val");
  command->add_option("--tokens", config->most_tokens, "stop after so many tokens in all")
      ->transform(as_quantity());
  add_threads_option(*command, config->threads);
  command->add_flag("--overwrite", config->overwrite, "remove the shards that are in the folder");
  add_corpus_options(*command, config->format, config->inputs);
  command->callback([config, tokenizer] {
    config->tokenizer = tokenizer_path(*tokenizer);
    const Manifest manifest = prepare(*config);
    fmt::print("{}\n", config->folder.string());
    print_split(manifest, Split::kTrain, "training");
    print_split(manifest, Split::kValidation, "validation");
  });
}

}  // namespace carope
