#include "data/synth.h"

#include <algorithm>
#include <vector>

#include "core/context.h"
#include "core/parallel.h"
#include "data/pretokenizer.h"
#include "data/synth_chapter.h"

namespace carope {
namespace {

std::int64_t count_pieces(std::string_view text) {
  std::int64_t pieces = 0;
  for (; !text.empty(); ++pieces) {
    text.remove_prefix(first_piece(text));
  }
  return pieces;
}

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
  const Context context = Context::cpu(threads);
  struct Made {
    std::string text;
    std::int64_t tokens = 0;
  };
  constexpr std::int64_t kBlock = 256;
  const bool exact = amount.unit == SynthUnit::kDocuments;
  const bool counts_tokens = amount.unit == SynthUnit::kTokens;
  SynthTotals totals;
  while (true) {
    std::vector<Made> block(static_cast<std::size_t>(
        exact ? std::min(kBlock, amount.count - totals.documents) : kBlock));
    parallel_for(context, static_cast<std::int64_t>(block.size()), [&](std::int64_t i) {
      Made& made = block[static_cast<std::size_t>(i)];
      made.text = synth_document(config, static_cast<std::uint64_t>(totals.documents + i));
      made.tokens = counts_tokens ? count_pieces(made.text) : 0;
    });
    for (const Made& made : block) {
      ++totals.documents;
      totals.bytes += static_cast<std::int64_t>(made.text.size());
      totals.tokens += made.tokens;
      take(made.text, totals);
      if (totals.of(amount.unit) >= amount.count) {
        return totals;
      }
    }
  }
}

}  // namespace carope
