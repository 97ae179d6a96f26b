#include "train/run_data.h"

#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"
#include "core/file.h"
#include "core/hash.h"
#include "core/json.h"
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

/// The hash of what a run was begun with; empty where that is not known.
std::string begun_with(const std::filesystem::path& run) {
  const std::filesystem::path file = run / "run.json";
  const auto json = std::filesystem::exists(file)
                        ? parse_json<nlohmann::json>(read_file(file), file.string(), false)
                        : nlohmann::json();
  const auto hash =
      json.is_object() ? json.value("data_manifest_sha256", nlohmann::json()) : nlohmann::json();
  return hash.is_string() ? hash.get<std::string>() : std::string();
}

std::optional<Manifest> manifest_beside(const std::filesystem::path& folder_or_shard) {
  return Manifest::load(std::filesystem::is_regular_file(folder_or_shard)
                            ? folder_or_shard.parent_path()
                            : folder_or_shard);
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
  const auto manifest = Manifest::load(path);
  if (!manifest) {
    return;
  }
  check<ConfigError>(manifest->complete,
                     "data.path = {} is not complete: carope data prepare was stopped before its "
                     "end; run it again as before, and it goes on",
                     path);
  std::set<std::string> named;
  for (const Manifest::Output& shard : manifest->shards) {
    const std::filesystem::path file = std::filesystem::path(path) / shard.file;
    check<FileError>(std::filesystem::exists(file),
                     "{} is missing, which manifest.json names; bring it back, or prepare the data "
                     "again with carope data prepare",
                     file.string());
    const std::size_t tokens = Shard(file).tokens().size();
    check<FileError>(static_cast<std::int64_t>(tokens) == shard.tokens,
                     "{} has {} tokens, where manifest.json says {}; bring back the one that was "
                     "prepared, or prepare the data again with carope data prepare",
                     file.string(), tokens, shard.tokens);
    named.insert(shard.file);
  }
  for (const std::filesystem::path& file : list_shards(path)) {
    check<FileError>(named.contains(file.filename().string()),
                     "{} is not among the shards that manifest.json names; move it elsewhere, or "
                     "remove manifest.json if all of them are meant",
                     file.string());
  }
}

std::string data_hash(const std::filesystem::path& data) {
  const std::filesystem::path manifest = data / "manifest.json";
  return std::filesystem::exists(manifest) ? sha256_of_file(manifest) : std::string();
}

bool is_data_of(const std::filesystem::path& run, const std::filesystem::path& data) {
  const std::string begun = begun_with(run);
  return !begun.empty() && data_hash(data) == begun;
}

void require_same_data(const std::filesystem::path& run, const std::filesystem::path& data) {
  check<ConfigError>(
      begun_with(run).empty() || is_data_of(run, data),
      "data.path = {} is not what {} was begun with: its manifest.json is another one. "
      "Bring that data back, name where it lies now with --data.path, or begin in another folder",
      data.string(), run.string());
}

void require_same_tokenizer(const RunConfig& config, const std::filesystem::path& data) {
  const auto own = manifest_beside(config.data.path);
  const auto other = manifest_beside(data);
  if (!own || !other) {
    return;
  }
  check<ConfigError>(
      own->tokenizer_sha256 == other->tokenizer_sha256,
      "{} was prepared with the tokenizer {:.12}, but the model was trained on {}, prepared with "
      "{:.12}, so its numbers mean other tokens; name data prepared with the model's tokenizer",
      data.string(), other->tokenizer_sha256, config.data.path, own->tokenizer_sha256);
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
