#pragma once

#include <filesystem>
#include <memory>

#include "data/corpus/corpus.h"

namespace carope {

/// Whether this build can read Parquet: an optional component, see cmake/parquet.cmake.
bool reads_parquet();
/// What a user does about a build that cannot.
inline constexpr const char* kHowToReadParquet =
    "install Arrow's library, with 'pip install pyarrow' or the package libparquet-dev, then "
    "configure and build again";

/// The texts in column `format.text_field` of a Parquet file, one a row; rows without are skipped.
std::unique_ptr<DocumentReader> open_parquet(const std::filesystem::path& path,
                                             const CorpusFormat& format);

}  // namespace carope
