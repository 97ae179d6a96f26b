#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "generate/decode_step.h"
#include "generate/sampler.h"
#include "model/gpt.h"

namespace carope {

/// Reads a sequence piece by piece and knows, after each, what the model expects next.
class SequenceReader {
 public:
  /// `ctx` and `model` must outlive the reader, which has room for `capacity` tokens.
  SequenceReader(Context& ctx, const Gpt& model, std::int64_t capacity);

  /// Reads the tokens that follow those read before. Memory is planned anew only when a piece is
  /// longer than one token and not as long as the last such piece.
  void read(std::span<const TokenId> piece);
  /// Computes the logits [V] of the token after the last that was read. Valid until the next call.
  std::span<const float> logits();

  /// Sets how next() picks tokens. Call it before anything is read. A GPU that can pick as the
  /// sampler does sends the host one token, not its logits. The sampler must outlive the reader.
  void pick_by(Sampler& sampler);
  /// Reads a token and picks the one after it.
  TokenId next(TokenId token);

  const DecodeState& state() const { return state_; }
  /// How many tokens have been read.
  std::int64_t seen() const { return state_.seen.front(); }

 private:
  Context& ctx_;
  const Gpt& model_;
  DecodeState state_;
  Activations single_;                // for one token
  std::optional<Activations> piece_;  // for several
  std::optional<DecodeStep> step_;    // reads one token on a GPU
  Sampler* sampler_ = nullptr;
  std::int64_t last_ = 0;  // tokens of the last piece
  std::vector<std::int32_t> tokens_;
  DeviceBatch device_batch_;
  std::vector<float> logits_;
  std::span<const float> step_logits_;
};

/// How a prompt is continued.
struct GenerateConfig {
  SamplerConfig sampler{};
  std::int64_t tokens = 200;       // new ones, at most
  std::int64_t chunk = 512;        // tokens of the prompt that are read at once
  std::vector<TokenId> allowed{};  // ids that may be picked, in rising order
  std::optional<TokenId> end{};    // the token to stop at
};

/// Is told how far the work has come.
struct GenerateObserver {
  std::function<void(std::int64_t)> read;  // so many tokens of the prompt have been read
  std::function<void(TokenId)> token;      // a new token
};

/// What came of it, and how long it took.
struct Generated {
  std::vector<TokenId> tokens;  // without the end
  bool ended = false;           // at the token to stop at
  double prompt_seconds = 0.0;
  std::int64_t steps = 0;  // new tokens that were read, one at a time
  double step_seconds = 0.0;
};

/// Reads a prompt and lets the model continue it, until it has as many tokens as asked for, it ends
/// the text, or `stop` is set. What the encoding has no positions for is an error before anything
/// is computed. Token n of the sequence is drawn by (seed, n): a prompt that goes on with tokens
/// that were drawn is continued as before.
Generated generate(Context& ctx, Gpt& model, std::span<const TokenId> prompt,
                   const GenerateConfig& config, const GenerateObserver& observer,
                   const std::atomic<bool>& stop);

}  // namespace carope
