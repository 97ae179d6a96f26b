#include "generate/vocabulary.h"

#include <algorithm>
#include <filesystem>

#include "core/error.h"
#include "data/fetch/cache.h"
#include "data/shards/manifest.h"
#include "data/tokenizer/encoder.h"
#include "train/run_data.h"

namespace carope {
namespace {

namespace fs = std::filesystem;

fs::path find_tokenizer(const RunConfig& run, const std::string& name) {
  if (!name.empty()) {
    return tokenizer_path(name);
  }
  const fs::path beside = tokenizer_beside_data(run);
  check<FileError>(fs::exists(beside),
                   "there is no tokenizer beside the data of this run: {} is missing; name the "
                   "tokenizer that made its tokens with --tokenizer",
                   beside.string());
  return beside;
}

}  // namespace

Tokenizer tokenizer_of(const RunConfig& run, const std::string& name) {
  const fs::path path = find_tokenizer(run, name);
  Tokenizer tokenizer = Tokenizer::load(path);
  check<ConfigError>(tokenizer.size() <= run.model.vocabulary,
                     "{} has {} tokens, but the model's vocabulary only {}; name the tokenizer "
                     "that the model was trained with",
                     path.string(), tokenizer.size(), run.model.vocabulary);
  const auto manifest = Manifest::load(run.data.path);
  check<ConfigError>(!manifest || manifest->tokenizer_sha256 == tokenizer.fingerprint(),
                     "{} is not the tokenizer that {} was prepared with, so its numbers mean other "
                     "tokens; leave out --tokenizer, or name the right one",
                     path.string(), run.data.path);
  return tokenizer;
}

std::vector<TokenId> known_tokens(const Tokenizer& tokenizer) {
  const TokenizerDefinition& definition = tokenizer.definition();
  std::vector<TokenId> ids;
  for (std::size_t id = 0; id < definition.tokens.size(); ++id) {
    if (!definition.tokens[id].empty()) {
      ids.push_back(static_cast<TokenId>(id));
    }
  }
  for (const SpecialToken& special : definition.specials) {
    ids.push_back(special.id);
  }
  std::sort(ids.begin(), ids.end());
  return ids;
}

std::vector<TokenId> prompt_tokens(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<TokenId> ids;
  if (const auto end_of_text = tokenizer.end_of_text()) {
    ids.push_back(*end_of_text);
  }
  Encoder(tokenizer).encode(text, ids);
  return ids;
}

}  // namespace carope
