#include "model/block.h"

namespace carope {

Normed take_normed(Arena& arena, const Tensor& y) {
  return {.y = y, .mean = arena.take({y.rows()}), .rstd = arena.take({y.rows()})};
}

BlockActivations Block::plan(Arena& arena, const Plan& plan, const BlockWorkspace& shared) const {
  const std::int64_t rows = plan.pass.tokens();
  const auto take = [&](std::int64_t columns) {
    return arena.take({{rows, columns}, plan.compute});
  };
  const bool shares = plan.shares_activations;
  BlockActivations a;
  a.attention =
      attention_.plan(arena, plan, take_normed(arena, shares ? shared.normed : take(width_)));
  a.residual_mid = take(width_);
  a.mlp_normed = take_normed(arena, shares ? shared.normed : take(width_));
  if (plan.gelu == KeptOfGelu::kSlope) {
    a.mlp_gelu.slope = take(mlp_width_);
  } else if (plan.gelu == KeptOfGelu::kInput) {
    a.mlp_gelu.input = take(mlp_width_);
  }
  a.mlp_hidden = shares ? shared.mlp_hidden : take(mlp_width_);
  return a;
}

BlockWorkspace Block::plan_workspace(Arena& arena, const Plan& plan) const {
  const std::int64_t rows = plan.pass.tokens();
  const auto take = [&](std::int64_t columns) {
    return arena.take({{rows, columns}, plan.compute});
  };
  BlockWorkspace w;
  if (plan.shares_activations) {
    w.normed = take(width_);
    w.mlp_hidden = take(mlp_width_);
  }
  if (plan.pass.trains()) {
    w.attention = attention_.plan_workspace(arena, plan);
    w.dresidual = take(width_);
    w.dnormed = take(width_);
    w.dmlp = take(mlp_width_);
    w.dembedding = attention_.reads_embedding() ? take(width_) : Tensor{};
  }
  return w;
}

void Block::forward(Context& ctx, const Plan& plan, const Sequence& seq, const BlockWeights& w,
                    const Tensor& embedding, const BlockActivations& a, AttentionState* state,
                    const Tensor& y) const {
  attention_.forward(ctx, plan, seq, w.attention, a.residual, embedding, a.attention, state,
                     a.residual_mid);
  layer_norm(ctx, a.residual_mid, w.mlp.norm, a.mlp_normed);
  linear_gelu(ctx, a.mlp_normed.y, w.mlp.in.weight, w.mlp.in.bias, a.mlp_gelu, a.mlp_hidden,
              plan.rounding);
  linear_add(ctx, a.mlp_hidden, w.mlp.out.weight, w.mlp.out.bias, a.residual_mid, y, plan.rounding);
}

void Block::backward(Context& ctx, const Plan& plan, const Sequence& seq, const BlockWeights& w,
                     const BlockWeights& dw, const Tensor& embedding, const BlockActivations& a,
                     BlockWorkspace& s, const Tensor& dbias_below, Write write) const {
  if (plan.shares_activations) {
    gelu(ctx, a.mlp_gelu.input, a.mlp_hidden);
  }
  // The norm behind this block has summed the gradient of the bias in mlp.out.
  linear_backward_weight(ctx, a.mlp_hidden, s.dresidual, dw.mlp.out.weight, {}, write);
  linear_backward_gelu(ctx, s.dresidual, w.mlp.out.weight, a.mlp_gelu, s.dmlp, dw.mlp.in.bias,
                       write);
  if (plan.shares_activations) {
    layer_norm(ctx, a.residual_mid, w.mlp.norm, a.mlp_normed);
  }
  linear_backward_weight(ctx, a.mlp_normed.y, s.dmlp, dw.mlp.in.weight, {}, write);
  linear_backward_input(ctx, s.dmlp, w.mlp.in.weight, s.dnormed, Write::kOverwrite);
  norm_backward(ctx,
                {.x = a.residual_mid,
                 .normed = a.mlp_normed,
                 .gain = w.mlp.norm.gain,
                 .dx = s.dresidual,
                 .dweights = dw.mlp.norm,
                 .write = write,
                 .dbias_before = dw.attention.out.bias},
                s.dnormed);
  attention_.backward(ctx, plan, seq, w.attention, dw.attention, a.attention,
                      {.x = a.residual,
                       .embedding = embedding,
                       .dresidual = s.dresidual,
                       .dbias_below = dbias_below,
                       .dnormed = s.dnormed,
                       .dembedding = s.dembedding,
                       .workspace = s.attention,
                       .write = write});
}

}  // namespace carope
