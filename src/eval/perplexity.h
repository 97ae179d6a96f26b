#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/bootstrap.h"
#include "core/context.h"
#include "data/loader/token_stream.h"
#include "dist/communicator.h"
#include "model/gpt.h"

namespace carope {

/// Which targets of which windows count.
enum class Protocol : std::uint8_t {
  kWindows,  // windows side by side, all targets
  kSliding,  // windows that overlap; each target once, with as much context as a window gives
  kLast,     // windows side by side, the last targets of each
};
/// "windows", "sliding" or "last".
std::string_view to_string(Protocol protocol);

/// What the bootstrap draws again.
enum class Resample : std::uint8_t { kWindows, kDocuments };
/// "windows" or "documents".
std::string_view to_string(Resample resample);

struct EvalConfig {
  std::vector<std::int64_t> lengths{};  // of windows, in tokens
  Protocol protocol = Protocol::kWindows;
  std::int64_t stride = 0;  // of sliding windows; 0: half the length
  std::int64_t last = 0;    // targets of a window that count; 0: half the shortest length
  std::int64_t tokens = 0;  // targets at most; 0: all
  Resample resample = Resample::kWindows;
  Resampling resampling{};
  std::int64_t positions = 64;  // points of a curve at most
  // Tokens that the model runs on, which bounds memory and changes no result; 0: what keeps the
  // device busy.
  std::int64_t tokens_at_once = 0;
};

/// The tokens to score a model on.
struct EvalData {
  const TokenStream& stream;
  std::optional<TokenId> end_of_text{};  // begins a document; needed wherever documents matter
  bool documents = false;                // the model's attention stays within documents
};

/// The mean loss at some positions of a window.
struct PositionLoss {
  std::int64_t position = 0;  // the first of them, from 0
  std::int64_t tokens = 0;
  double loss = 0.0;
};

/// A model's loss at one length.
struct LengthScore {
  std::int64_t length = 0;
  std::string reason{};  // why there is nothing below; empty if there is
  double loss = 0.0;     // nats a token
  Interval interval{};   // of the loss, 95 %
  std::int64_t tokens = 0;
  std::vector<LossSum> units{};  // windows or documents, in the stream's order
  std::vector<PositionLoss> positions{};
};

struct Evaluation {
  std::string checkpoint{};
  std::string rope_scaling{};  // e.g. "yarn:4", where the model was scaled for the evaluation
  std::int64_t step = 0;
  EvalConfig config{};      // with `last` filled in where it counts
  std::int64_t tokens = 0;  // of the stretch of the stream that all lengths are scored on
  std::vector<LengthScore> lengths{};
};

/// Scores a model at every length on the same stretch of the stream: from its beginning, a multiple
/// of the longest length. A window that a length leaves at the stretch's end is shorter, so that
/// `kWindows` scores the same targets at every length. Memory does not grow with the length but for
/// the cache of keys and values; with documents, windows are run whole. `title` is that of the
/// progress shown.
Evaluation measure_perplexity(Context& ctx, Gpt& model, const EvalData& data,
                              const EvalConfig& config, const std::string& title = "Scoring");

/// The same by several protocols, whatever the configuration's is. A window that they share is run
/// once, so all three take no longer than sliding alone. Ranks that call it together share the
/// work, and each gets what one would, bit for bit; the first shows the progress.
std::vector<Evaluation> measure_perplexity(Context& ctx, Communicator& ranks, Gpt& model,
                                           const EvalData& data, const EvalConfig& config,
                                           std::span<const Protocol> protocols,
                                           const std::string& title = "Scoring");

}  // namespace carope
