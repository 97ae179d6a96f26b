#include "support/training.h"

#include <vector>

#include "core/random.h"
#include "data/shards/shard.h"

namespace carope::test {

void write_training_data(const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  const Philox random(3, 1);
  for (const auto& [split, count] : {std::pair{Split::kValidation, 700}, {Split::kTrain, 5000}}) {
    ShardWriter writer(shard_path(folder, "t", split, split == Split::kTrain ? 1 : 0));
    std::vector<TokenId> tokens;
    for (int i = 0; i < count; ++i) {
      tokens.push_back(
          static_cast<TokenId>(random.below(8, static_cast<std::uint64_t>(i)) == 0
                                   ? random.below(50, static_cast<std::uint64_t>(i + 100000))
                                   : i * 7 % 50));
    }
    writer.append(tokens);
    writer.commit();
  }
}

Manifest manifest_of(const std::filesystem::path& folder) {
  Manifest manifest;
  manifest.complete = true;
  for (const std::filesystem::path& shard : list_shards(folder)) {
    const auto tokens = static_cast<std::int64_t>(Shard(shard).tokens().size());
    manifest.shards.push_back({.file = shard.filename().string(), .tokens = tokens});
  }
  return manifest;
}

std::string small_training(const std::filesystem::path& data) {
  return "--data.path '" + data.string() +
         "' --model.vocabulary 50 --model.layers 2 --model.heads 2 --model.width 16 "
         "--model.length 16 --train.batch_tokens 128 --train.micro_batch 4 --train.tokens 12800 "
         "--train.learning_rate 1e-2 --train.warmup_steps 5 --train.validate_every 25 "
         "--train.checkpoint_every 10";
}

}  // namespace carope::test
