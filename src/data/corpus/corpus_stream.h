#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "data/corpus/corpus.h"

namespace carope {

/// Pieces that follow one another in one input.
struct CorpusBatch {
  std::size_t input = 0;         // number of the file
  std::int64_t first_piece = 0;  // number of the first in its file
  std::vector<RawDocument> pieces;
  std::shared_ptr<const DocumentReader> reader;
  std::int64_t position = 0;  // bytes of all files read so far
};

/// The documents of several files, one after the other.
class CorpusStream {
 public:
  /// Throws at once if a file is missing, or is by its beginning none that can be read.
  CorpusStream(std::vector<std::filesystem::path> inputs, CorpusFormat format);

  /// Bytes of all files, as they lie on disk.
  std::int64_t bytes() const { return bytes_; }
  /// Begins at a piece that an earlier stream has counted, before anything is read.
  void start_at(std::size_t input, std::int64_t piece);
  /// Is told of each file before it is read.
  void on_open(std::function<void(std::size_t input)> visit) { on_open_ = std::move(visit); }

  /// The next pieces, about a megabyte of them; nothing at the end.
  std::optional<CorpusBatch> next();

 private:
  std::vector<std::filesystem::path> inputs_;
  std::vector<std::int64_t> sizes_;
  CorpusFormat format_;
  std::int64_t bytes_ = 0;
  std::int64_t bytes_before_ = 0;  // of the files that have been read
  std::size_t input_ = 0;
  std::int64_t piece_ = 0;    // pieces of the file that have been read
  std::int64_t skipped_ = 0;  // pieces of the first file that are not wanted
  std::shared_ptr<DocumentReader> reader_;
  std::function<void(std::size_t)> on_open_;
};

}  // namespace carope
