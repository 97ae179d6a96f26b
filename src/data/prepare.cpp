#include "data/prepare.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <memory>
#include <mutex>

#include "core/error.h"
#include "core/file.h"
#include "core/hash.h"
#include "core/pipeline.h"
#include "core/progress.h"
#include "data/corpus_stream.h"
#include "data/encoder.h"
#include "data/tokenizer.h"

namespace carope {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMostShardTokens = std::numeric_limits<std::int32_t>::max();

/// A batch of the corpus as tokens.
struct EncodedBatch {
  CorpusPlace first;  // token 0 of its first piece
  std::int64_t position = 0;
  std::vector<TokenId> ids;
  std::vector<std::int64_t> ends;    // of each piece in `ids`
  std::vector<std::int64_t> starts;  // of documents in `ids`

  std::int64_t size() const { return static_cast<std::int64_t>(ids.size()); }

  /// Where token `offset` of `ids` is in the corpus.
  CorpusPlace place(std::int64_t offset) const {
    const auto piece = std::upper_bound(ends.begin(), ends.end(), offset) - ends.begin();
    const std::int64_t begin = piece == 0 ? 0 : ends[static_cast<std::size_t>(piece) - 1];
    return {first.input, first.piece + piece, offset - begin};
  }

  std::int64_t documents(std::int64_t begin, std::int64_t end) const {
    return std::lower_bound(starts.begin(), starts.end(), end) -
           std::lower_bound(starts.begin(), starts.end(), begin);
  }
};

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

/// Cuts the stream of tokens into shards and keeps the manifest.
class ShardCutter {
 public:
  ShardCutter(fs::path folder, Manifest manifest)
      : folder_(std::move(folder)), manifest_(std::move(manifest)) {
    for (const Manifest::Output& shard : manifest_.shards) {
      written_ += shard.tokens;
    }
  }

  const Manifest& manifest() const { return manifest_; }
  void save() const { manifest_.save(folder_); }
  std::int64_t written() const { return written_; }
  bool full() const { return manifest_.most_tokens > 0 && written_ >= manifest_.most_tokens; }

  /// Notes the digest of an input; any thread.
  void note_input(std::size_t input, const std::string& digest) {
    const std::scoped_lock lock(noting_);
    std::string& known = manifest_.inputs[input].sha256;
    check<FileError>(known.empty() || known == digest,
                     "{} is not what it was when {} was begun; prepare all again with --overwrite",
                     manifest_.inputs[input].path, folder_.string());
    known = digest;
  }

  void append(const EncodedBatch& batch, std::int64_t offset) {
    if (writer_ && split() != split_at(batch.first)) {
      finish(batch.place(offset));
    }
    while (offset < batch.size() && !full()) {
      if (!writer_) {
        open(split_at(batch.first));
      }
      std::int64_t count = std::min(batch.size() - offset, capacity() - writer_->size());
      if (manifest_.most_tokens > 0) {
        count = std::min(count, manifest_.most_tokens - written_);
      }
      writer_->append(std::span(batch.ids).subspan(static_cast<std::size_t>(offset),
                                                   static_cast<std::size_t>(count)));
      shard_.documents += batch.documents(offset, offset + count);
      written_ += count;
      offset += count;
      if (writer_->size() == capacity()) {
        finish(batch.place(offset));
      }
    }
    end_ = batch.place(offset);
  }

  Manifest complete() {
    if (writer_) {
      finish(end_);
    }
    const bool validation_only = manifest_.shards.size() == 1 && !has_validation_inputs() &&
                                 manifest_.tokens(Split::kTrain) == 0;
    if (validation_only) {
      divide_only_shard();
    }
    manifest_.complete = true;
    manifest_.save(folder_);
    return manifest_;
  }

 private:
  bool has_validation_inputs() const { return manifest_.inputs.front().validation; }
  Split split() const { return shard_.split; }
  std::int64_t capacity() const {
    return split() == Split::kValidation && !has_validation_inputs() ? manifest_.validation_tokens
                                                                     : manifest_.shard_tokens;
  }

  /// The split of tokens that come now, from this place.
  Split split_at(const CorpusPlace& place) const {
    if (has_validation_inputs()) {
      const auto& input = manifest_.inputs[static_cast<std::size_t>(place.input)];
      return input.validation ? Split::kValidation : Split::kTrain;
    }
    return manifest_.shards.empty() ? Split::kValidation : Split::kTrain;
  }

  void open(Split split) {
    shard_ = {};
    shard_.split = split;
    const fs::path path = shard_path(folder_, manifest_.name, split,
                                     static_cast<std::int64_t>(manifest_.shards.size()));
    shard_.file = path.filename().string();
    writer_ = std::make_unique<ShardWriter>(path);
  }

  void finish(const CorpusPlace& end) {
    shard_.tokens = writer_->size();
    shard_.end = end;
    writer_->commit();
    writer_.reset();
    const std::scoped_lock lock(noting_);
    manifest_.shards.push_back(shard_);
    manifest_.save(folder_);
  }

  /// Gives the first tenth of a small corpus, up to where a document ends, to validation and the
  /// rest to training.
  void divide_only_shard() {
    const Manifest::Output whole = manifest_.shards.front();
    const Shard shard(folder_ / whole.file);
    const auto tokens = shard.tokens();
    check<FileError>(tokens.size() > 1,
                     "the inputs of {} are 1 token, too few to divide between validation and "
                     "training; give more text, or a higher --tokens",
                     folder_.string());
    const auto end_of_text = static_cast<TokenId>(manifest_.end_of_text);
    const auto after = [&](std::size_t count) {
      return tokens.begin() + static_cast<std::ptrdiff_t>(std::max<std::size_t>(count, 1));
    };
    const auto tenth = after(tokens.size() / 10);
    const auto half = after(tokens.size() / 2);
    auto cut = std::find(tenth, half, end_of_text);
    cut = cut == half ? tenth : cut;  // rather inside a document than most for validation
    // Until both are there, the manifest promises neither.
    manifest_.shards.clear();
    manifest_.save(folder_);
    const auto write = [&](Split split, std::span<const TokenId> part) {
      open(split);
      writer_->append(part);
      shard_.documents = std::count(part.begin(), part.end(), end_of_text);
      shard_.tokens = writer_->size();
      shard_.end = whole.end;
      writer_->commit();
      writer_.reset();
      return shard_;
    };
    const Manifest::Output validation = write(Split::kValidation, {tokens.begin(), cut});
    manifest_.shards.push_back(validation);
    manifest_.shards.push_back(write(Split::kTrain, {cut, tokens.end()}));
  }

  fs::path folder_;
  Manifest manifest_;
  std::mutex noting_;
  std::int64_t written_ = 0;
  std::unique_ptr<ShardWriter> writer_;
  Manifest::Output shard_;  // the one being written
  CorpusPlace end_;
};

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
