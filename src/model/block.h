#pragma once

#include "model/attention_layer.h"

namespace carope {

/// The MLP of a block: x + out(gelu(in(norm(x)))).
struct MlpWeights {
  NormWeights norm;
  LinearWeights in;   // [F, C]
  LinearWeights out;  // [C, F]
};

struct BlockWeights {
  AttentionWeights attention;
  MlpWeights mlp;
};

/// What a block leaves between its forward and its backward pass. N = B T.
struct BlockActivations {
  Tensor residual;  // [N, C] the block's input
  AttentionActivations attention;
  Tensor residual_mid;  // [N, C] after attention
  Normed mlp_normed;    // [N, C]
  SavedGelu mlp_gelu;   // [N, F]
  Tensor mlp_hidden;    // [N, F]
};

/// Memory that every block uses in turn.
struct BlockWorkspace {
  Tensor normed;      // [N, C] the norms' results, where blocks do not keep them
  Tensor mlp_hidden;  // [N, F] likewise
  AttentionWorkspace attention;
  Tensor dresidual;   // [N, C]
  Tensor dnormed;     // [N, C]
  Tensor dmlp;        // [N, F]
  Tensor dembedding;  // [N, C] only where the encoding reads the embedding
};

/// A pre-norm block: attention and MLP, each added to the residual.
class Block {
 public:
  Block(const GptConfig& config, const Encoding& encoding, Device device)
      : width_(config.width),
        mlp_width_(config.mlp_width()),
        attention_(config, encoding, device) {}

  const AttentionLayer& attention() const { return attention_; }

  /// Takes what a block keeps, but for its residual; `workspace` was planned before.
  BlockActivations plan(Arena& arena, const Plan& plan, const BlockWorkspace& workspace) const;
  BlockWorkspace plan_workspace(Arena& arena, const Plan& plan) const;

  /// y = the block's result. `embedding` is that of the tokens.
  void forward(Context& ctx, const Plan& plan, const Sequence& seq, const BlockWeights& weights,
               const Tensor& embedding, const BlockActivations& a, AttentionState* state,
               const Tensor& y) const;

  /// workspace.dresidual is the gradient of y, and becomes that of the block's input. `dbias_below`
  /// gets the gradient of the bias that was added to that input, unless it is empty.
  void backward(Context& ctx, const Plan& plan, const Sequence& seq, const BlockWeights& weights,
                const BlockWeights& gradients, const Tensor& embedding, const BlockActivations& a,
                BlockWorkspace& workspace, const Tensor& dbias_below, Write write) const;

 private:
  std::int64_t width_, mlp_width_;
  AttentionLayer attention_;
};

/// Room for a norm's statistics; `y` is where its result goes.
Normed take_normed(Arena& arena, const Tensor& y);

}  // namespace carope
