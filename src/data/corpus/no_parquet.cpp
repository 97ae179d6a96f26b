#include "core/error.h"
#include "data/corpus/parquet.h"

namespace carope {

bool reads_parquet() { return false; }

std::unique_ptr<DocumentReader> open_parquet(const std::filesystem::path& path,
                                             const CorpusFormat&) {
  throw FileError(fmt::format("{} is a Parquet file, and this build reads none; {}", path.string(),
                              kHowToReadParquet));
}

}  // namespace carope
