#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/corpus/byte_source.h"

namespace carope {

/// How files are cut into documents.
struct CorpusFormat {
  std::string text_field = "text";  // of a .jsonl object, or column of a .parquet file
  /// Where a .txt file is cut into documents; empty: a file is one document.
  std::string delimiter = {};
  /// Bytes that a line of JSON, or text without a space, may go on for. More is not a corpus but a
  /// mistake.
  std::size_t longest = std::size_t{1} << 30;
};

/// Part of an input as a reader hands it on. A document of a .txt file may come in several pieces,
/// cut where the tokenizer cuts too, so that no document needs to fit in memory.
struct RawDocument {
  std::string content;  // UTF-8 text, or one line of JSON
  /// Line (.jsonl, from 1), row (.parquet, from 0) or document (.txt, from 0).
  std::int64_t place = 0;
  bool continues = false;  // the document of the piece before goes on
};

/// The documents of one file, in order. Reading and parsing are apart, since parsing can be done by
/// many threads.
class DocumentReader {
 public:
  virtual ~DocumentReader() = default;

  /// Replaces `batch` by the next documents, about `bytes` of them; none at the end of the file. A
  /// file that holds no document at all is an error, thrown where its end is found.
  virtual void read(std::vector<RawDocument>& batch, std::size_t bytes) = 0;
  /// The text of a document that this reader has read, or nothing where there is none (a blank
  /// line). Any thread may call it.
  virtual std::optional<std::string> text_of(RawDocument document) const = 0;
  /// Bytes of the file (compressed, if it is) read so far, for showing progress.
  virtual std::int64_t position() const = 0;
};

/// Opens .txt, .jsonl (each also .gz or .zst) or .parquet, by its name.
std::unique_ptr<DocumentReader> open_documents(const std::filesystem::path& path,
                                               const CorpusFormat& format);

/// The documents in the bytes of a .txt file; `path` is for messages.
std::unique_ptr<DocumentReader> read_text(std::unique_ptr<ByteSource> bytes,
                                          const std::filesystem::path& path,
                                          const CorpusFormat& format);
/// The documents in the bytes of a .jsonl file, one line each; `path` is for messages.
std::unique_ptr<DocumentReader> read_jsonl(std::unique_ptr<ByteSource> bytes,
                                           const std::filesystem::path& path,
                                           const CorpusFormat& format);

/// Throws the error of a file that has been read to its end and held no document.
[[noreturn]] void fail_without_documents(const std::filesystem::path& path);

}  // namespace carope
