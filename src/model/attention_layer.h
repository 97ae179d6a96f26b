#pragma once

#include "core/arena.h"
#include "model/plan.h"
#include "ops/attention.h"
#include "ops/linear.h"
#include "ops/norm.h"
#include "position/encoding.h"

namespace carope {

struct LinearWeights {
  Tensor weight;  // [out, in]
  Tensor bias;    // [out]
};

/// The attention of a block: x + projection(attention(rotate(qkv(norm(x))))).
struct AttentionWeights {
  NormWeights norm;
  LinearWeights qkv;   // [(H + 2 K) D, C]
  LinearWeights gate;  // [K, C] fp32, where the encoding has one; its bias may be missing
  LinearWeights out;   // [C, H D]
};

/// What the forward pass leaves for the backward pass. N = B T.
struct AttentionActivations {
  Normed normed;       // [N, C]
  Tensor qkv;          // [N, (H + 2 K) D] q and k rotated
  Tensor gate_logits;  // [B, T, K] f32, with a gate
  Tensor carry;        // [B, chunks, K, P] u32: see Rotation
  Tensor phases;       // [B, T, K, P] u16, where attention rotates and a backward pass follows
  Tensor attended;     // [N, H D]
  Tensor logsumexp;    // [B, H, T]
};

/// Gradients that all layers use in turn.
struct AttentionWorkspace {
  Tensor dattended;     // [N, H D]
  Tensor dqkv;          // [N, (H + 2 K) D]
  Tensor dgate_logits;  // [B, T, K] f32, with a gate
};

/// What a layer remembers of the tokens that a sequence has had so far.
struct AttentionState {
  KeyValueCache cache;
  Tensor phase;  // [B, K, P] u32, with a gate: after the last token
};

/// The attention of every block of a model, whose weights and activations callers bring. What is to
/// be rotated and how follows from the encoding; by which kernel, from the plan.
class AttentionLayer {
 public:
  AttentionLayer(const GptConfig& config, const Encoding& encoding, Device device);

  const Encoding& encoding() const { return encoding_; }
  bool reads_embedding() const;

  // Memory, by `take(spec)`. A forward pass alone needs no workspace.
  AttentionActivations plan(Arena& arena, const Plan& plan, const Normed& normed) const;
  AttentionWorkspace plan_workspace(Arena& arena, const Plan& plan) const;
  AttentionState plan_state(Arena& arena, std::int64_t batch, std::int64_t capacity,
                            DType compute) const;

  /// y = x + the layer's result. `embedding` [N, C] is read where the gate reads it; `state` is
  /// given where the plan's pass continues one.
  void forward(Context& ctx, const Plan& plan, const Sequence& seq, const AttentionWeights& weights,
               const Tensor& x, const Tensor& embedding, const AttentionActivations& a,
               AttentionState* state, const Tensor& y) const;

  struct Backward {
    const Tensor& x;            // [N, C] as given to forward()
    const Tensor& embedding;    // [N, C] likewise
    const Tensor& dresidual;    // [N, C] gradient of y; becomes, in place, that of x
    const Tensor& dbias_below;  // [C] gradient of the bias that was added to x; or empty
    Tensor& dnormed;            // [N, C] clobbered
    const Tensor& dembedding;   // [N, C] added to, where the gate reads the embedding
    const AttentionWorkspace& workspace;
    Write write;  // of weights' gradients
  };
  void backward(Context& ctx, const Plan& plan, const Sequence& seq,
                const AttentionWeights& weights, const AttentionWeights& gradients,
                const AttentionActivations& a, const Backward& args) const;

 private:
  Tensor gate_input(const Tensor& embedding, const AttentionActivations& a) const;
  Rotation rotation(const Sequence& seq, const Tensor& qkv, const AttentionActivations& a,
                    const AttentionState* state) const;
  const CustomTurns& custom_turns() const {
    return std::get<CustomTurns>(encoding_.rotation->turns);
  }
  /// Rotates q and k in a.qkv, and fills a.attended.
  void attend(Context& ctx, const Plan& plan, const Sequence& seq, const AttentionActivations& a,
              AttentionState* state) const;
  /// Gradients of qkv before its rotation, and of the gate's logits.
  void attention_backward(Context& ctx, const Plan& plan, const Sequence& seq,
                          const AttentionActivations& a, const AttentionWorkspace& w,
                          const LinearWeights& dqkv_weights, Write write) const;

  Encoding encoding_;
  ModelShape shape_;
  Device device_;
  Memory increments_memory_, ratios_memory_, slopes_memory_;
  Tensor increments_;  // [P] u32 of FixedTurns
  Tensor ratios_;      // [P] f64 of PowerTurns
  Attention attention_;
  Attention rotating_attention_;  // where its kernel rotates
};

}  // namespace carope
