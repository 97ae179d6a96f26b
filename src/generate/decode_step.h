#pragma once

#include <memory>
#include <optional>
#include <span>

#include "core/graph.h"
#include "data/token.h"
#include "generate/sampler.h"
#include "model/gpt.h"

namespace carope {

/// Reads single tokens on a GPU. What a step issues differs in the token and its position alone,
/// and both stand in memory: so a step is recorded once and then run as a whole.
class DecodeStep {
 public:
  DecodeStep(const Context& ctx, const Gpt& model);

  /// From the next step on, also computes what a sampler would have to. Call it before the first.
  void weigh(const Sampler::Weighed& weighed);

  /// Reads the token after those that `state` has seen; returns the logits [V] of the one after it,
  /// valid until the next call. The model, the memory `a` for one token and the state are to be the
  /// same in every call.
  std::span<const float> read(Context& ctx, const Gpt& model, TokenId token, Activations& a,
                              DecodeState& state);
  /// Of the last step's logits; empty if nobody asked for them.
  std::span<const BlockWeight> weights() const;

 private:
  struct Input {
    std::int32_t token, offset;
  };
  void issue(Context& ctx, const Gpt& model, Activations& a, DecodeState& state) const;

  Memory memory_;
  Tensor input_;  // [2] i32: an Input on the device
  std::shared_ptr<void> pinned_input_;
  std::shared_ptr<void> pinned_logits_;
  std::optional<Sampler::Weighed> weighed_;
  Memory weight_memory_;
  Tensor weights_;  // [blocks, 2] f64: BlockWeights on the device
  std::shared_ptr<void> pinned_weights_;
  std::unique_ptr<TokenPass> pass_;  // where one kernel can do it
  Graph graph_;
  bool ran_ = false;
};

}  // namespace carope
