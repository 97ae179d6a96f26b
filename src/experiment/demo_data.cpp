#include "experiment/demo_data.h"

#include "core/error.h"
#include "core/file.h"
#include "data/shards/prepare.h"
#include "data/synth/synth.h"
#include "data/tokenizer/tokenizer_training.h"

namespace carope {

std::filesystem::path demo_shards(const std::filesystem::path& folder) { return folder / "shards"; }

void make_demo_data(const std::filesystem::path& folder, std::int64_t vocabulary,
                    std::int64_t training_tokens, int threads) {
  constexpr std::int64_t kValidationTokens = 131'072;
  constexpr std::int64_t kBytesPerToken = 6;  // more than a token has
  make_folder(folder);
  const std::filesystem::path corpus = folder / "synth.jsonl";
  const std::filesystem::path tokenizer = folder / "tokenizer.json";
  const std::int64_t bytes = kBytesPerToken * (training_tokens + kValidationTokens);
  if (!std::filesystem::exists(corpus)) {
    write_synth_corpus({}, {SynthUnit::kBytes, bytes}, threads, corpus);
  }
  if (!std::filesystem::exists(tokenizer)) {
    save_tokenizer(train_tokenizer(count_pieces({corpus}, {}, threads), vocabulary), tokenizer);
  }
  PrepareConfig config;
  config.inputs = {corpus};
  config.tokenizer = tokenizer;
  config.folder = demo_shards(folder);
  config.name = "synth";
  config.validation_tokens = kValidationTokens;
  config.threads = threads;
  const std::int64_t made = prepare(config).tokens(Split::kTrain);
  check<ConfigError>(made >= training_tokens,
                     "{} was made for a smaller experiment: it has {} tokens to train on, {} are "
                     "wanted; remove it, or name another folder with --out",
                     folder.string(), made, training_tokens);
}

}  // namespace carope
