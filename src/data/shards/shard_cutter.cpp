#include "data/shards/shard_cutter.h"

#include <algorithm>
#include <span>

#include "core/error.h"

namespace carope {

CorpusPlace EncodedBatch::place(std::int64_t offset) const {
  const auto piece = std::upper_bound(ends.begin(), ends.end(), offset) - ends.begin();
  const std::int64_t begin = piece == 0 ? 0 : ends[static_cast<std::size_t>(piece) - 1];
  return {first.input, first.piece + piece, offset - begin};
}

std::int64_t EncodedBatch::documents(std::int64_t begin, std::int64_t end) const {
  return std::lower_bound(starts.begin(), starts.end(), end) -
         std::lower_bound(starts.begin(), starts.end(), begin);
}

ShardCutter::ShardCutter(std::filesystem::path folder, Manifest manifest)
    : folder_(std::move(folder)), manifest_(std::move(manifest)) {
  for (const Manifest::Output& shard : manifest_.shards) {
    written_ += shard.tokens;
  }
}

void ShardCutter::note_input(std::size_t input, const std::string& digest) {
  const std::scoped_lock lock(noting_);
  std::string& known = manifest_.inputs[input].sha256;
  check<FileError>(known.empty() || known == digest,
                   "{} is not what it was when {} was begun; prepare all again with --overwrite",
                   manifest_.inputs[input].path, folder_.string());
  known = digest;
}

void ShardCutter::append(const EncodedBatch& batch, std::int64_t offset) {
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

Manifest ShardCutter::complete() {
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

std::int64_t ShardCutter::capacity() const {
  return split() == Split::kValidation && !has_validation_inputs() ? manifest_.validation_tokens
                                                                   : manifest_.shard_tokens;
}

Split ShardCutter::split_at(const CorpusPlace& place) const {
  if (has_validation_inputs()) {
    const auto& input = manifest_.inputs[static_cast<std::size_t>(place.input)];
    return input.validation ? Split::kValidation : Split::kTrain;
  }
  return manifest_.shards.empty() ? Split::kValidation : Split::kTrain;
}

void ShardCutter::open(Split split) {
  shard_ = {};
  shard_.split = split;
  const std::filesystem::path path = shard_path(folder_, manifest_.name, split,
                                                static_cast<std::int64_t>(manifest_.shards.size()));
  shard_.file = path.filename().string();
  writer_ = std::make_unique<ShardWriter>(path);
}

void ShardCutter::finish(const CorpusPlace& end) {
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
void ShardCutter::divide_only_shard() {
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

}  // namespace carope
