#include "train/run_data.h"

#include "core/error.h"
#include "data/shards/manifest.h"
#include "data/shards/shard.h"

namespace carope {
namespace {

LoaderConfig loader_config(const RunConfig& config) {
  LoaderConfig loader{.length = config.model.length,
                      .batch = config.rows_a_step(),
                      .order = config.data.order,
                      .seed = config.train.seed,
                      .vocabulary = config.model.vocabulary,
                      .documents = config.data.documents};
  if (config.data.documents) {
    const auto manifest = Manifest::load(config.data.path);
    check<ConfigError>(manifest.has_value(),
                       "data.documents = true needs the id of end of text from a manifest.json in "
                       "{}; prepare the data with carope data prepare",
                       config.data.path);
    loader.end_of_text = static_cast<TokenId>(manifest->end_of_text);
  }
  return loader;
}

}  // namespace

void require_data(const RunConfig& config) {
  const std::string& path = config.data.path;
  check<ConfigError>(
      !path.empty(),
      "data.path is not set: name a folder of token shards, e.g. --data.path FOLDER; "
      "carope data prepare makes one");
  check<ConfigError>(std::filesystem::exists(path),
                     "data.path = {} does not exist; make token shards there with carope data "
                     "prepare --out {} FILES, or name others with --data.path",
                     path, path);
}

std::filesystem::path tokenizer_beside_data(const RunConfig& config) {
  return std::filesystem::path(config.data.path) / "tokenizer";
}

std::optional<Tokenizer> load_tokenizer_beside_data(const RunConfig& config) {
  const std::filesystem::path beside = tokenizer_beside_data(config);
  return std::filesystem::exists(beside) ? std::optional(Tokenizer::load(beside)) : std::nullopt;
}

std::unique_ptr<Loader> open_training(const RunConfig& config, std::int64_t first_step,
                                      const Communicator& ranks) {
  LoaderConfig loader = loader_config(config);
  loader.first_step = first_step;
  loader.rank = ranks.rank();
  loader.ranks = ranks.size();
  return std::make_unique<Loader>(find_shards(config.data.path, Split::kTrain), loader);
}

std::unique_ptr<Loader> open_validation(const RunConfig& config, std::int64_t rows) {
  LoaderConfig loader = loader_config(config);
  loader.order = Order::kSequential;
  loader.batch = rows;
  return std::make_unique<Loader>(find_shards(config.data.path, Split::kValidation), loader);
}

Batch batch_of(const TokenBatch& loaded) {
  return {.seq = {.batch = loaded.tokens.dim(0),
                  .length = loaded.tokens.dim(1),
                  .document_start = loaded.document_start},
          .tokens = loaded.tokens,
          .targets = loaded.targets};
}

}  // namespace carope
