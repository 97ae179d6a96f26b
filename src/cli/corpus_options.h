#pragma once

#include <CLI/CLI.hpp>

#include "data/corpus.h"

namespace carope {

/// The options of every command that reads text.
inline void add_corpus_options(CLI::App& command, CorpusFormat& format) {
  command
      .add_option("--text-field", format.text_field,
                  "field of a .jsonl line, or column of a .parquet file, that holds the text")
      ->capture_default_str();
  command.add_option("--delimiter", format.delimiter,
                     "cut .txt files into documents at this text, e.g. '<|endoftext|>'; by default "
                     "a file is one document");
}

}  // namespace carope
