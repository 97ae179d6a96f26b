#include "data/corpus/corpus_stream.h"

#include <algorithm>

#include "core/error.h"
#include "core/file.h"

namespace carope {

constexpr std::size_t kBatchBytes = std::size_t{1} << 20;

CorpusStream::CorpusStream(std::vector<std::filesystem::path> inputs, CorpusFormat format)
    : inputs_(std::move(inputs)), format_(std::move(format)) {
  for (const auto& input : inputs_) {  // what can be refused is refused before hours are spent
    sizes_.push_back(size_of_file(input));
    bytes_ += sizes_.back();
    open_documents(input, format_);
  }
}

void CorpusStream::start_at(std::size_t input, std::int64_t piece) {
  for (; input_ < input; ++input_) {
    bytes_before_ += sizes_[input_];
  }
  skipped_ = piece;
}

std::optional<CorpusBatch> CorpusStream::next() {
  while (input_ < inputs_.size()) {
    if (!reader_) {
      if (on_open_) {
        on_open_(input_);
      }
      reader_ = open_documents(inputs_[input_], format_);
      piece_ = 0;
    }
    CorpusBatch batch{input_, piece_, {}, reader_, 0};
    reader_->read(batch.pieces, kBatchBytes);
    if (batch.pieces.empty()) {
      reader_.reset();
      skipped_ = 0;
      bytes_before_ += sizes_[input_++];
      continue;
    }
    piece_ += static_cast<std::int64_t>(batch.pieces.size());
    batch.position = bytes_before_ + reader_->position();
    if (piece_ <= skipped_) {
      continue;
    }
    const std::int64_t unwanted = std::max<std::int64_t>(skipped_ - batch.first_piece, 0);
    batch.pieces.erase(batch.pieces.begin(), batch.pieces.begin() + unwanted);
    batch.first_piece += unwanted;
    return batch;
  }
  return std::nullopt;
}

}  // namespace carope
