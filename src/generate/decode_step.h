#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "core/graph.h"
#include "core/memory.h"
#include "data/token.h"
#include "generate/sampler.h"
#include "model/gpt.h"
#include "ops/pick_token.h"

namespace carope {

/// Reads single tokens on a GPU. Steps differ in the token and its position alone, and both stand
/// in device memory: a step is recorded once as a CUDA graph and then launched as a whole. Every
/// call must be given the same model, activations (of one token) and state.
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
  /// Reads a token and picks the one after it, as the sampler does whose choice it has.
  TokenId next(Context& ctx, const Gpt& model, TokenId token, const Sampler& sampler,
               Activations& a, DecodeState& state);

 private:
  /// A step is issued when it runs first, then recorded, then replayed. One that works on the host
  /// cannot be recorded: it is always issued.
  struct Replayed {
    Graph graph;
    bool ran = false;
  };
  void run(Context& ctx, const Gpt& model, Replayed& step, const std::function<void()>& issue,
           TokenId token, const Plan& plan, DecodeState& state);
  /// Issues what computes the logits [V] of the token after token_.
  Tensor issue_pass(Context& ctx, const Gpt& model, Activations& a, DecodeState& state) const;

  Memory memory_;
  Tensor token_;  // [1, 1] i32 on the device: what is read
  std::shared_ptr<void> pinned_token_;
  std::shared_ptr<void> pinned_logits_;
  std::shared_ptr<void> pinned_pick_;
  Replayed reading_, picking_;
  std::optional<TokenChoice> choice_;
};

}  // namespace carope
