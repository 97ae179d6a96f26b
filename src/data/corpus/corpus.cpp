#include "data/corpus/corpus.h"

#include "core/error.h"
#include "core/file.h"
#include "data/corpus/parquet.h"

namespace carope {

void fail_without_documents(const std::filesystem::path& path) {
  throw FileError(fmt::format(
      "{} holds no documents; check that it is the file you mean, or leave it out", path.string()));
}

std::unique_ptr<DocumentReader> open_documents(const std::filesystem::path& path,
                                               const CorpusFormat& format) {
  require_file(path);
  if (path.extension() == ".parquet") {
    return open_parquet(path, format);
  }
  const bool compressed = path.extension() == ".gz" || path.extension() == ".zst";
  const auto kind = compressed ? path.stem().extension() : path.extension();
  if (kind == ".txt") {
    return read_text(open_bytes(path), path, format);
  }
  check<FileError>(kind == ".jsonl",
                   "{} has a name that tells no known format; name it .txt or .jsonl (with .gz or "
                   ".zst behind it if it is compressed) or .parquet",
                   path.string());
  return read_jsonl(open_bytes(path), path, format);
}

}  // namespace carope
