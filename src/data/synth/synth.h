#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "data/tokenizer/tokenizer.h"

namespace carope {

/// A corpus of invented school-book chapters that needs no download.
struct SynthConfig {
  std::uint64_t seed = 1;
};

/// A chapter of 800 to 4000 words about people, towns, animals and words drawn for it alone, in
/// which whatever is said or asked later follows from what was said before. A function of (seed,
/// index), the same on every machine. A title line, then paragraphs, each ended by "\n".
std::string synth_document(const SynthConfig& config, std::uint64_t index);

enum class SynthUnit : std::uint8_t {
  kDocuments,
  kBytes,   // of the documents' text
  kTokens,  // of a tokenizer, or else words, numbers and marks as first_piece cuts them
};

/// "documents", "bytes" or "tokens".
std::string_view to_string(SynthUnit unit);

/// How much of the corpus is wanted: documents are whole, so the last may go beyond.
struct SynthAmount {
  SynthUnit unit = SynthUnit::kDocuments;
  std::int64_t count = 100;
  const Tokenizer* tokenizer = nullptr;  // counts tokens
};

/// What has been made.
struct SynthTotals {
  std::int64_t documents = 0;
  std::int64_t bytes = 0;
  std::int64_t tokens = 0;  // counted only where tokens are what is wanted

  std::int64_t of(SynthUnit unit) const {
    return unit == SynthUnit::kDocuments ? documents : unit == SynthUnit::kBytes ? bytes : tokens;
  }
};

/// Makes documents 0, 1, 2, ... on `threads` threads (0: every core) and hands them to `take` in
/// this order, with the totals that include it, until the amount is reached.
SynthTotals synth_corpus(
    const SynthConfig& config, const SynthAmount& amount, int threads,
    const std::function<void(std::string_view document, const SynthTotals& totals)>& take);

/// Writes the corpus as one file that appears when it is complete, showing progress: .txt, in which
/// the line kEndOfText stands between documents, or .jsonl, one {"text": ...} a line. An empty
/// path is standard output, as .jsonl.
SynthTotals write_synth_corpus(const SynthConfig& config, const SynthAmount& amount, int threads,
                               const std::filesystem::path& out);

}  // namespace carope
