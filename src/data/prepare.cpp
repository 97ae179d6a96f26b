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

  /// Gives the first tenth of a small corpus to validation and the rest to training.
  void divide_only_shard() {
    const Manifest::Output whole = manifest_.shards.front();
    const Shard shard(folder_ / whole.file);
    const auto tokens = shard.tokens();
    const auto end_of_text = static_cast<TokenId>(manifest_.end_of_text);
    const auto tenth = tokens.begin() + static_cast<std::ptrdiff_t>(tokens.size() / 10);
    auto cut = std::find(tenth, tokens.end(), end_of_text);
    cut = cut == tokens.end() || cut == tokens.begin() ? tenth : cut;
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
  check<ConfigError>(config.shard_tokens > 0 && config.shard_tokens <= kMostShardTokens,
                     "shards of {} tokens are not possible; from 1 to {} are", config.shard_tokens,
                     kMostShardTokens);
  check<ConfigError>(tokenizer.end_of_text().has_value(),
                     "{} has no {} token, which begins every document; use another tokenizer",
                     config.tokenizer.string(), kEndOfText);
  Manifest manifest;
  const fs::path folder = fs::absolute(config.folder / "").parent_path();
  manifest.name = config.name.empty() ? folder.filename().string() : config.name;
  manifest.tokenizer_sha256 = tokenizer.fingerprint();
  manifest.vocabulary = tokenizer.size();
  manifest.end_of_text = *tokenizer.end_of_text();
  manifest.format = config.format;
  manifest.shard_tokens = config.shard_tokens;
  manifest.validation_tokens =
      config.validation_tokens > 0 ? config.validation_tokens : config.shard_tokens;
  manifest.most_tokens = config.most_tokens;
  const auto add = [&](const fs::path& path, bool validation) {
    require_file(path);
    manifest.inputs.push_back(
        {path.string(), validation, static_cast<std::int64_t>(fs::file_size(path)), ""});
  };
  for (const fs::path& path : config.validation) {
    add(path, true);
  }
  for (const fs::path& path : config.inputs) {
    add(path, false);
  }
  return manifest;
}

/// What an earlier call has left of this work; an empty manifest's worth if nothing.
Manifest go_on(const PrepareConfig& config, const Manifest& wanted) {
  const auto is_shard = [](const fs::directory_entry& entry) {
    return split_of(entry.path()).has_value();
  };
  if (config.overwrite) {
    fs::remove(config.folder / "manifest.json");
    std::vector<fs::directory_entry> old;
    std::copy_if(fs::directory_iterator(config.folder), {}, std::back_inserter(old), is_shard);
    for (const auto& entry : old) {
      fs::remove(entry.path());
    }
    return wanted;
  }
  const auto earlier = Manifest::load(config.folder);
  if (!earlier) {
    const bool taken = std::any_of(fs::directory_iterator(config.folder), {}, is_shard);
    check<FileError>(
        !taken,
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
    const auto tokens =
        static_cast<std::int64_t>(Shard(config.folder / shard.file).tokens().size());
    check<FileError>(tokens == shard.tokens,
                     "{} has {} tokens, the manifest says {}; give --overwrite to make all again",
                     (config.folder / shard.file).string(), tokens, shard.tokens);
  }
  return *earlier;
}

}  // namespace

Manifest prepare(const PrepareConfig& config) {
  const Tokenizer tokenizer = Tokenizer::load(config.tokenizer);
  const Manifest wanted = plan(config, tokenizer);
  make_folder(config.folder);
  ShardCutter cutter(config.folder, go_on(config, wanted));
  if (cutter.manifest().complete) {
    return cutter.manifest();
  }
  copy_tokenizer(config.tokenizer, config.folder / "tokenizer");

  std::vector<fs::path> inputs = config.validation;
  inputs.insert(inputs.end(), config.inputs.begin(), config.inputs.end());
  CorpusStream corpus(inputs, config.format);
  corpus.on_open(
      [&](std::size_t input) { cutter.note_input(input, sha256_of_file(inputs[input])); });
  CorpusPlace begin;
  if (!cutter.manifest().shards.empty()) {
    begin = cutter.manifest().shards.back().end;
    corpus.start_at(static_cast<std::size_t>(begin.input), begin.piece);
  }

  Progress progress("Encoding", corpus.bytes(), "B");
  const std::size_t threads = worker_count(config.threads);
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
