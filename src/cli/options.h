#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <map>
#include <string>

#include "data/corpus.h"

// Options that several commands share.
namespace carope {

/// Lets an option take large numbers as people write them: 500k, 100M, 10B.
inline CLI::AsNumberWithUnit as_quantity() {
  static const std::map<std::string, std::int64_t> kUnits{
      {"k", 1'000}, {"M", 1'000'000}, {"B", 1'000'000'000}};
  return CLI::AsNumberWithUnit(kUnits, CLI::AsNumberWithUnit::CASE_SENSITIVE, "N[k|M|B]");
}

inline CLI::Option* add_tokenizer_option(CLI::App& command, std::string& tokenizer) {
  return command.add_option("--tokenizer", tokenizer,
                            "tokenizer.json, vocab.bpe, a .tiktoken file, a folder with one of "
                            "them, or the name of a fetched one, e.g. gpt2");
}

inline void add_threads_option(CLI::App& command, int& threads) {
  command.add_option("--threads", threads, "threads; by default all")
      ->check(CLI::NonNegativeNumber);
}

/// How and what text is read.
inline void add_corpus_options(CLI::App& command, CorpusFormat& format,
                               std::vector<std::filesystem::path>& files) {
  command
      .add_option("--text-field", format.text_field,
                  "field of a .jsonl line, or column of a .parquet file, that holds the text")
      ->capture_default_str();
  command.add_option("--delimiter", format.delimiter,
                     "cut .txt files into documents at this text, e.g. '<|endoftext|>'; by default "
                     "a file is one document");
  command.add_option("files", files, "text: .txt or .jsonl, also with .gz or .zst, or .parquet")
      ->required();
}

}  // namespace carope
