#include "data/synth/synth.h"

#include <atomic>
#include <optional>
#include <vector>

#include "core/error.h"
#include "core/pipeline.h"
#include "data/synth/chapter.h"
#include "data/tokenizer/encoder.h"
#include "data/tokenizer/pretokenizer.h"

namespace carope {
namespace {

/// Counts by a tokenizer, or else words, numbers and marks.
class TokenCounter {
 public:
  explicit TokenCounter(const Tokenizer* tokenizer) {
    if (tokenizer != nullptr) {
      encoder_.emplace(*tokenizer);
    }
  }

  std::int64_t count(std::string_view text) {
    if (encoder_) {
      ids_.clear();
      encoder_->encode(text, ids_);
      return static_cast<std::int64_t>(ids_.size());
    }
    std::int64_t pieces = 0;
    for (; !text.empty(); ++pieces) {
      text.remove_prefix(first_piece(text));
    }
    return pieces;
  }

 private:
  std::optional<Encoder> encoder_;
  std::vector<TokenId> ids_;
};

}  // namespace

std::string_view to_string(SynthUnit unit) {
  constexpr std::string_view kNames[] = {"documents", "bytes", "tokens"};
  return kNames[static_cast<std::size_t>(unit)];
}

std::string synth_document(const SynthConfig& config, std::uint64_t index) {
  return synth::Chapter(config.seed, index).write();
}

SynthTotals synth_corpus(
    const SynthConfig& config, const SynthAmount& amount, int threads,
    const std::function<void(std::string_view document, const SynthTotals& totals)>& take) {
  check<ConfigError>(amount.count > 0, "the synthetic corpus cannot have {} {}; ask for 1 or more",
                     amount.count, to_string(amount.unit));
  struct Made {
    std::string text;
    std::int64_t tokens = 0;
  };
  const std::size_t workers = worker_count(threads);
  std::vector<TokenCounter> counters(workers, TokenCounter(amount.tokenizer));
  std::uint64_t next = 0;
  std::atomic<bool> enough = false;
  SynthTotals totals;
  run_pipeline(
      workers, [&] { return enough ? std::nullopt : std::optional(next++); },
      [&](std::size_t thread, std::uint64_t index) {
        Made made{synth_document(config, index)};
        made.tokens = amount.unit == SynthUnit::kTokens ? counters[thread].count(made.text) : 0;
        return made;
      },
      [&](const Made& made) {
        if (enough) {
          return;  // was under way when the amount was reached
        }
        ++totals.documents;
        totals.bytes += static_cast<std::int64_t>(made.text.size());
        totals.tokens += made.tokens;
        take(made.text, totals);
        enough = totals.of(amount.unit) >= amount.count;
      });
  return totals;
}

}  // namespace carope
