#include "experiment/demo_data.h"

#include "core/file.h"
#include "data/shards/prepare.h"
#include "data/synth/synth.h"
#include "data/tokenizer/tokenizer_training.h"

namespace carope {

void make_demo_data(const std::filesystem::path& folder, std::int64_t vocabulary,
                    std::int64_t training_tokens, int threads) {
  constexpr std::int64_t kValidationTokens = 131'072;
  constexpr std::int64_t kBytesPerToken = 4;  // more than a token has: no window is seen twice
  make_folder(folder);
  const std::filesystem::path corpus = folder / "synth.jsonl";
  const std::filesystem::path tokenizer = folder / "tokenizer.json";
  if (!std::filesystem::exists(corpus)) {
    const std::int64_t bytes = kBytesPerToken * (training_tokens + kValidationTokens);
    write_synth_corpus({}, {SynthUnit::kBytes, bytes}, threads, corpus);
  }
  if (!std::filesystem::exists(tokenizer)) {
    save_tokenizer(train_tokenizer(count_pieces({corpus}, {}, threads), vocabulary), tokenizer);
  }
  prepare({.inputs = {corpus},
           .tokenizer = tokenizer,
           .folder = folder / "shards",
           .name = "synth",
           .validation_tokens = kValidationTokens,
           .threads = threads});
}

}  // namespace carope
