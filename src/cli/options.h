#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>

#include "data/corpus/corpus.h"

// Options that several commands share.
namespace carope {

/// Lets an option take large numbers as people write them: 500k, 1.5M, 10B.
inline CLI::Validator as_quantity() {
  const auto to_digits = [](std::string& text) -> std::string {
    static const std::map<std::string, double> kUnits{
        {"", 1.0}, {"k", 1e3}, {"M", 1e6}, {"B", 1e9}};
    constexpr double kMost = 1e15;  // up to here every whole number is a double
    const char* const end = text.data() + text.size();
    double number = 0.0;
    const auto [rest, error] = std::from_chars(text.data(), end, number);
    const auto unit = kUnits.find(std::string(rest, end));
    number *= unit == kUnits.end() ? 0.0 : unit->second;
    if (error != std::errc() || !(number >= 1.0 && number <= kMost)) {
      return fmt::format("{} is not possible; give 1 or more, e.g. 500k, 1.5M or 10B", text);
    }
    text = std::to_string(std::llround(number));
    return "";
  };
  return {to_digits, "N[k|M|B]"};
}

/// Refuses smaller numbers; without it, CLI11 takes a negative one for a huge one where none can be
/// negative.
inline CLI::Validator at_least(std::int64_t lowest) {
  const auto refuse_less = [lowest](std::string& text) -> std::string {
    double number = static_cast<double>(lowest);  // what is none is not judged here
    std::from_chars(text.data(), text.data() + text.size(), number);
    return number < static_cast<double>(lowest)
               ? fmt::format("{} is not possible; give {} or more", text, lowest)
               : "";
  };
  return {refuse_less, ""};
}

inline CLI::Validator not_empty() {
  return {[](std::string& text) -> std::string { return text.empty() ? "give a text" : ""; }, ""};
}

inline CLI::Option* add_tokenizer_option(CLI::App& command, std::string& tokenizer) {
  return command.add_option("--tokenizer", tokenizer,
                            "tokenizer.json, vocab.bpe, a .tiktoken file, a folder with one of "
                            "them, or the name of a fetched one, e.g. gpt2");
}

inline void add_threads_option(CLI::App& command, int& threads) {
  command.add_option("--threads", threads, "threads; by default all");
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
