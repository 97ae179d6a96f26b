#pragma once

#include <filesystem>
#include <vector>

#include "report/results.h"

namespace carope {

/// Writes what a document on the runs is put together from into a folder: a table a file, as
/// Markdown, and a figure a file, as SVG.
///
///     perplexity.md, perplexity-sliding.md, perplexity-last.md     by encoding and length
///     differences.md, differences-sliding.md, differences-last.md  to rope, on the same seeds and
///                                                                  text; without rope, to the
///                                                                  first
///     cost.md                                                      speed and memory
///     gate.md, words.md                                            of each encoding that has a
///     gate
///     *.svg
///
/// What the runs have nothing for is left out.
void write_document_parts(const std::filesystem::path& folder,
                          const std::vector<EncodingRuns>& encodings);

}  // namespace carope
