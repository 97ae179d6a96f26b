#include "data/shards/prepare.h"

#include <atomic>
#include <limits>
#include <memory>

#include "core/error.h"
#include "core/file.h"
#include "core/hash.h"
#include "core/pipeline.h"
#include "core/progress.h"
#include "data/corpus/corpus_stream.h"
#include "data/shards/shard_cutter.h"
#include "data/tokenizer/encoder.h"
#include "data/tokenizer/tokenizer.h"

namespace carope {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMostShardTokens = std::numeric_limits<std::int32_t>::max();

EncodedBatch encode(Encoder& encoder, TokenId end_of_text, CorpusBatch batch) {
  EncodedBatch encoded;
  encoded.first = {static_cast<std::int64_t>(batch.input), batch.first_piece, 0};
  encoded.position = batch.position;
  for (RawDocument& piece : batch.pieces) {
    const bool begins = !piece.continues;
    if (const auto text = batch.reader->text_of(std::move(piece))) {
      if (begins) {
        encoded.starts.push_back(encoded.size());
        encoded.ids.push_back(end_of_text);
      }
      encoder.encode(*text, encoded.ids);
    }
    encoded.ends.push_back(encoded.size());
  }
  return encoded;
}

Manifest plan(const PrepareConfig& config, const Tokenizer& tokenizer) {
  check<ConfigError>(!config.inputs.empty(), "nothing to prepare: name at least one file of text");
  check<ConfigError>(!config.folder.empty(), "no folder for the shards: name one");
  check<ConfigError>(config.shard_tokens > 0 && config.shard_tokens <= kMostShardTokens,
                     "shards of {} tokens are not possible; from 1 to {} are", config.shard_tokens,
                     kMostShardTokens);
  check<ConfigError>(config.validation_tokens <= kMostShardTokens,
                     "a validation shard of {} tokens is not possible; from 1 to {} are",
                     config.validation_tokens, kMostShardTokens);
  check<ConfigError>(tokenizer.end_of_text().has_value(),
                     "{} has no {} token, which begins every document; use another tokenizer",
                     config.tokenizer.string(), kEndOfText);
  Manifest manifest;
  const fs::path folder = fs::absolute(config.folder / "").lexically_normal().parent_path();
  manifest.name = config.name.empty() ? folder.filename().string() : config.name;
  check<ConfigError>(manifest.name.find('/') == std::string::npos,
                     "the name '{}' has a '/'; shards lie in the folder itself, name only what "
                     "their files begin with",
                     manifest.name);
  manifest.tokenizer_sha256 = tokenizer.fingerprint();
  manifest.vocabulary = tokenizer.size();
  manifest.end_of_text = *tokenizer.end_of_text();
  manifest.format = config.format;
  manifest.shard_tokens = config.shard_tokens;
  manifest.validation_tokens =
      config.validation_tokens > 0 ? config.validation_tokens : config.shard_tokens;
  manifest.most_tokens = config.most_tokens;
  const auto add = [&](const fs::path& path, bool validation) {
    manifest.inputs.push_back({path.string(), validation, size_of_file(path), ""});
  };
  for (const fs::path& path : config.validation) {
    add(path, true);
  }
  for (const fs::path& path : config.inputs) {
    add(path, false);
    for (const fs::path& other : config.validation) {
      check<ConfigError>(!fs::equivalent(path, other),
                         "{} is named for validation and for training; a model must not be trained "
                         "on what it is validated on, name it once",
                         path.string());
    }
  }
  return manifest;
}

void check_shard(const fs::path& path, std::int64_t expected) try {
  const auto tokens = static_cast<std::int64_t>(Shard(path).tokens().size());
  check<FileError>(tokens == expected, "{} has {} tokens, the manifest says {}", path.string(),
                   tokens, expected);
} catch (const FileError& error) {
  throw FileError(
      fmt::format("{}; it was finished before, so put it back, or give --overwrite to "
                  "make all shards again",
                  error.what()));
}

/// A folder's shards, finished or begun, whose names begin like this.
std::vector<fs::path> shards_in(const fs::path& folder, const std::string& beginning) {
  std::vector<fs::path> shards;
  for (const auto& entry : fs::directory_iterator(folder)) {
    fs::path finished = entry.path();
    if (finished.extension() == ".part") {
      finished.replace_extension();
    }
    if (split_of(finished) && finished.filename().string().starts_with(beginning)) {
      shards.push_back(entry.path());
    }
  }
  return shards;
}

/// Shards of an earlier call that was stopped before it could note them.
std::vector<fs::path> unnoted_shards(const fs::path& folder, const Manifest& earlier) {
  std::vector<fs::path> shards = shards_in(folder, earlier.name + "_");
  for (const Manifest::Output& noted : earlier.shards) {
    std::erase(shards, folder / noted.file);
  }
  return shards;
}

void remove_all(const std::vector<fs::path>& files) {
  for (const fs::path& file : files) {
    fs::remove(file);
  }
}

/// What an earlier call has left of this work; an empty manifest's worth if nothing.
Manifest go_on(const PrepareConfig& config, Manifest wanted) {
  if (config.overwrite) {
    // Without a manifest nothing takes what is left of the old shards for the new ones.
    fs::remove(config.folder / "manifest.json");
    remove_all(shards_in(config.folder, ""));
    return wanted;
  }
  auto earlier = Manifest::load(config.folder);
  if (earlier && !earlier->complete) {
    remove_all(unnoted_shards(config.folder, *earlier));
    earlier = earlier->shards.empty() ? std::nullopt : earlier;
  }
  if (!earlier) {
    check<FileError>(
        shards_in(config.folder, "").empty(),
        "{} holds shards that are not of this program's making; choose another folder, "
        "or give --overwrite to remove them",
        config.folder.string());
    return wanted;
  }
  if (const auto difference = earlier->difference(wanted)) {
    throw FileError(fmt::format(
        "{} holds shards made with other settings ({}); choose another folder, or give --overwrite "
        "to make them again",
        config.folder.string(), *difference));
  }
  for (const Manifest::Output& shard : earlier->shards) {
    check_shard(config.folder / shard.file, shard.tokens);
  }
  if (earlier->complete) {
    return *earlier;
  }
  // Inputs that no finished shard has used may have been repaired, so `wanted` says what they are.
  for (std::size_t i = 0; i < earlier->used_inputs(); ++i) {
    wanted.inputs[i].sha256 = earlier->inputs[i].sha256;
  }
  wanted.shards = earlier->shards;
  return wanted;
}

}  // namespace

Manifest prepare(const PrepareConfig& config) {
  const Tokenizer tokenizer = Tokenizer::load(config.tokenizer);
  const std::size_t threads = worker_count(config.threads);
  Manifest wanted = plan(config, tokenizer);
  std::vector<fs::path> inputs = config.validation;
  inputs.insert(inputs.end(), config.inputs.begin(), config.inputs.end());
  CorpusStream corpus(inputs, config.format);
  make_folder(config.folder);
  const FolderLock lock(config.folder);
  ShardCutter cutter(config.folder, go_on(config, std::move(wanted)));
  if (cutter.manifest().complete) {
    return cutter.manifest();
  }
  cutter.save();  // before any shard, so that the next call knows them for its own
  copy_tokenizer(config.tokenizer, config.folder / "tokenizer");

  corpus.on_open(
      [&](std::size_t input) { cutter.note_input(input, sha256_of_file(inputs[input])); });
  CorpusPlace begin;
  if (!cutter.manifest().shards.empty()) {
    begin = cutter.manifest().shards.back().end;
    corpus.start_at(static_cast<std::size_t>(begin.input), begin.piece);
  }

  Progress progress("Encoding", corpus.bytes(), "B");
  std::vector<std::unique_ptr<Encoder>> encoders;
  for (std::size_t i = 0; i < threads; ++i) {
    encoders.push_back(std::make_unique<Encoder>(tokenizer));
  }
  std::atomic<bool> enough = cutter.full();
  bool first = true;
  run_pipeline(
      threads, [&] { return enough ? std::nullopt : corpus.next(); },
      [&](std::size_t thread, CorpusBatch batch) {
        return encode(*encoders[thread], *tokenizer.end_of_text(), std::move(batch));
      },
      [&](const EncodedBatch& batch) {
        if (first) {
          progress.start_at(begin.input == 0 && begin.piece == 0 ? 0 : batch.position);
        }
        const bool cut_before = batch.first == CorpusPlace{begin.input, begin.piece, 0};
        cutter.append(batch, cut_before ? begin.token : 0);
        first = false;
        enough = cutter.full();
        progress.note(si(static_cast<double>(cutter.written()), "tokens"));
        progress.advance_to(batch.position);
      });
  return cutter.complete();
}

}  // namespace carope
