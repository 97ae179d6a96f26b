#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "core/graph.h"
#include "data/token.h"
#include "generate/sampler.h"
#include "model/gpt.h"

namespace carope {

/// Reads single tokens on a GPU. What a step issues differs in the token and its position alone,
/// and both stand in memory: so a step is recorded once and then run as a whole. The model, the
/// memory `a` for one token and the state are to be the same in every call.
class DecodeStep {
 public:
  DecodeStep(const Context& ctx, const Gpt& model);

  /// Reads the token after those that `state` has seen; returns the logits [V] of the one after it,
  /// valid until the next call.
  std::span<const float> read(Context& ctx, const Gpt& model, TokenId token, Activations& a,
                              DecodeState& state);

  /// From now on next() picks by this choice. Call it before the first step.
  void pick_by(const TokenChoice& choice) { choice_ = choice; }
  bool picks() const { return choice_.has_value(); }
  /// Reads a token and picks the one after it, as the sampler does whose choice it has. Where one
  /// kernel takes a token through the model, up to `wanted` tokens are on their way, each read when
  /// the GPU has picked it: the next call is to read what this one returned. The state has seen
  /// those, too, but nothing after the token that ends the text.
  TokenId next(Context& ctx, const Gpt& model, TokenId token, std::int64_t wanted,
               const Sampler& sampler, Activations& a, DecodeState& state);

 private:
  /// A step as it is issued first, then recorded, then replayed.
  struct Replayed {
    Graph graph;
    bool ran = false;
  };
  void plan(Context& ctx, const Gpt& model, DecodeState& state);
  void set_next(const Gpt& model, TokenId token, const DecodeState& state) const;
  void run(Context& ctx, const Gpt& model, Replayed& step, const std::function<void()>& issue,
           DecodeState& state);
  /// Issues what computes the logits of the token after next_.
  Tensor issue_pass(Context& ctx, const Gpt& model, Activations& a, DecodeState& state) const;

  static constexpr std::int64_t kMostAhead = 4;  // tokens on their way

  Memory memory_;
  Tensor next_;  // [3] i32: a NextToken on the device
  std::shared_ptr<void> pinned_next_;
  std::shared_ptr<void> pinned_logits_;
  std::unique_ptr<TokenPass> pass_;  // where one kernel can do it
  bool planned_ = false;
  Replayed reading_, picking_;

  std::optional<TokenChoice> choice_;
  std::int64_t ahead_ = 0;              // tokens on their way
  std::shared_ptr<void> pinned_picks_;  // TokenPick [kMostAhead]: that of a token by its place
  std::array<std::shared_ptr<void>, kMostAhead> picked_;  // events; they end before the memory
};

}  // namespace carope
