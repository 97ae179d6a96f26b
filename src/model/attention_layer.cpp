#include "model/attention_layer.h"

#include "model/host_rotation.h"

namespace carope {
namespace {

/// The gate as the norm's kernel sees it, which has the gate's input at hand; empty where the gate
/// reads something else.
NormGate gate_behind_norm(bool reads_embedding, const LinearWeights& gate, const Tensor& logits) {
  return reads_embedding ? NormGate{}
                         : NormGate{.weight = gate.weight, .bias = gate.bias, .logits = logits};
}

}  // namespace

AttentionLayer::AttentionLayer(const GptConfig& config, const Encoding& encoding, Device device)
    : encoding_(encoding),
      shape_(config.shape()),
      device_(device),
      attention_{.heads = config.heads} {
  if (encoding_.rotation) {
    const auto& turns = encoding_.rotation->turns;
    if (const auto* fixed = std::get_if<FixedTurns>(&turns)) {
      increments_ = upload(device, fixed->increments, increments_memory_);
    } else if (const auto* power = std::get_if<PowerTurns>(&turns);
               power != nullptr && !power->ratios.empty()) {
      ratios_ = upload(device, power->ratios, ratios_memory_);
    }
  }
  if (encoding_.bias) {
    attention_.slopes = upload(device, encoding_.bias->per_head, slopes_memory_);
  }
  rotating_attention_ = attention_;
  if (encoding_.rotation) {
    // Its kernel does not scale q and k: both factors go into the scores.
    rotating_attention_.score_scale = encoding_.rotation->magnitude * encoding_.rotation->magnitude;
  }
}

bool AttentionLayer::reads_embedding() const {
  const GateSpec* gate = gate_of(encoding_);
  return gate != nullptr && gate->input == GateInput::kEmbedding;
}

AttentionActivations AttentionLayer::plan(Arena& arena, const Plan& plan,
                                          const Normed& normed) const {
  const Pass& pass = plan.pass;
  const std::int64_t attended = shape_.heads * shape_.head_dim;
  const std::int64_t qkv = attended + 2 * shape_.key_heads * shape_.head_dim;
  AttentionActivations a;
  a.normed = normed;
  a.qkv = arena.take({{pass.tokens(), qkv}, plan.compute});
  if (gate_of(encoding_) != nullptr) {
    a.gate_logits = arena.take({pass.batch, pass.length, shape_.key_heads});
    if (plan.rotated_by == RotatedBy::kOwnKernel) {
      const Rotation rotation{.k = {.count = shape_.key_heads}, .pairs = encoding_.rotation->pairs};
      a.carry = arena.take(rotation.carry_spec({.batch = pass.batch, .length = pass.length}));
    }
    if (plan.keeps_phases) {
      const Shape phases{pass.batch, pass.length, shape_.key_heads, encoding_.rotation->pairs};
      a.phases = arena.take({phases, DType::kU16});
    }
  }
  a.attended = arena.take({{pass.tokens(), attended}, plan.compute});
  a.logsumexp = arena.take({pass.batch, shape_.heads, pass.length});
  return a;
}

AttentionWorkspace AttentionLayer::plan_workspace(Arena& arena, const Plan& plan) const {
  const Pass& pass = plan.pass;
  const std::int64_t attended = shape_.heads * shape_.head_dim;
  const std::int64_t qkv = attended + 2 * shape_.key_heads * shape_.head_dim;
  AttentionWorkspace w;
  w.dattended = arena.take({{pass.tokens(), attended}, plan.compute});
  w.dqkv = arena.take({{pass.tokens(), qkv}, plan.compute});
  if (gate_of(encoding_) != nullptr) {
    w.dgate_logits = arena.take({pass.batch, pass.length, shape_.key_heads});
  }
  return w;
}

AttentionState AttentionLayer::plan_state(Arena& arena, std::int64_t batch, std::int64_t capacity,
                                          DType compute) const {
  const Shape cache{batch, capacity, shape_.key_heads * shape_.head_dim};
  AttentionState state{
      .cache = {.keys = arena.take({cache, compute}), .values = arena.take({cache, compute})},
      .phase = {}};
  if (gate_of(encoding_) != nullptr) {
    state.phase = arena.take({{batch, shape_.key_heads, encoding_.rotation->pairs}, DType::kU32});
  }
  return state;
}

Tensor AttentionLayer::gate_input(const Tensor& embedding, const AttentionActivations& a) const {
  return reads_embedding() ? embedding : a.normed.y;
}

Rotation AttentionLayer::rotation(const Sequence& seq, const Tensor& qkv,
                                  const AttentionActivations& a,
                                  const AttentionState* state) const {
  const QkvHeads parts = split_qkv(qkv, seq, shape_.heads, shape_.key_heads);
  if (!encoding_.rotation) {
    return {.q = parts.q, .k = parts.k, .pairs = shape_.pairs()};
  }
  const RotationSpec& spec = *encoding_.rotation;
  Rotation rotation{.q = parts.q,
                    .k = parts.k,
                    .layout = spec.layout,
                    .pairs = spec.pairs,
                    .magnitude = spec.magnitude,
                    .increments = increments_};
  if (const auto* power = std::get_if<PowerTurns>(&spec.turns)) {
    rotation.logits = a.gate_logits;
    rotation.ratios = ratios_;
    rotation.exponent_start = power->exponent_start;
    rotation.carry = a.carry;
    rotation.phases = a.phases;
    rotation.state = state != nullptr ? state->phase : Tensor{};
  }
  return rotation;
}

void AttentionLayer::forward(Context& ctx, const Plan& plan, const Sequence& seq,
                             const AttentionWeights& w, const Tensor& x, const Tensor& embedding,
                             const AttentionActivations& a, AttentionState* state,
                             const Tensor& y) const {
  layer_norm(ctx, x, w.norm, a.normed, gate_behind_norm(reads_embedding(), w.gate, a.gate_logits));
  linear(ctx, a.normed.y, w.qkv.weight, w.qkv.bias, a.qkv, plan.rounding);
  if (reads_embedding()) {
    // A product so narrow is no slower by row.
    linear(ctx, embedding, w.gate.weight, w.gate.bias, a.gate_logits, Rounding::kByRow);
  }
  attend(ctx, plan, seq, a, state);
  linear_add(ctx, a.attended, w.out.weight, w.out.bias, x, y, plan.rounding);
}

void AttentionLayer::attend(Context& ctx, const Plan& plan, const Sequence& seq,
                            const AttentionActivations& a, AttentionState* state) const {
  const Rotation turns = rotation(seq, a.qkv, a, state);
  if (plan.fused_attention) {
    rotate_and_attend(ctx, rotating_attention_, seq, turns, a.qkv, a.attended, a.logsumexp);
    return;
  }
  if (plan.rotated_by == RotatedBy::kHostFunctions) {
    rotate_on_host(ctx, seq, custom_turns().apply, turns.q, turns.k, a.qkv);
  } else if (plan.rotated_by == RotatedBy::kOwnKernel) {
    rotate(ctx, turns, seq);
  }
  if (state != nullptr) {
    attention_cached(ctx, attention_, seq, a.qkv, state->cache, a.attended);
  } else {
    attention(ctx, attention_, seq, a.qkv, a.attended, a.logsumexp);
  }
}

void AttentionLayer::attention_backward(Context& ctx, const Plan& plan, const Sequence& seq,
                                        const AttentionActivations& a, const AttentionWorkspace& w,
                                        const LinearWeights& dweights, Write write) const {
  const AttentionBackward args{.qkv = a.qkv,
                               .out = a.attended,
                               .logsumexp = a.logsumexp,
                               .dout = w.dattended,
                               .dqkv = w.dqkv};
  const Rotation turns = rotation(seq, a.qkv, a, nullptr);
  if (plan.fused_attention) {
    rotate_and_attend_backward(ctx, rotating_attention_, seq, turns, args,
                               {.dlogits = w.dgate_logits, .dbias = dweights.bias, .write = write});
    return;
  }
  carope::attention_backward(ctx, attention_, seq, args);
  const QkvHeads gradients = split_qkv(w.dqkv, seq, shape_.heads, shape_.key_heads);
  if (plan.rotated_by == RotatedBy::kHostFunctions) {
    rotate_on_host(ctx, seq, custom_turns().transpose, gradients.q, gradients.k, w.dqkv);
  } else if (plan.rotated_by == RotatedBy::kOwnKernel) {
    rotate_backward(ctx, turns, seq,
                    {.dq = gradients.q, .dk = gradients.k, .dlogits = w.dgate_logits});
  }
}

void AttentionLayer::backward(Context& ctx, const Plan& plan, const Sequence& seq,
                              const AttentionWeights& w, const AttentionWeights& dw,
                              const AttentionActivations& a, const Backward& args) const {
  const AttentionWorkspace& s = args.workspace;
  // The norm behind this layer has summed the gradient of the projection's bias.
  linear_backward_weight(ctx, a.attended, args.dresidual, dw.out.weight, {}, args.write);
  linear_backward_input(ctx, args.dresidual, w.out.weight, s.dattended, Write::kOverwrite);
  attention_backward(ctx, plan, seq, a, s, dw.qkv, args.write);
  if (plan.shares_activations) {
    layer_norm(ctx, args.x, w.norm, a.normed);
  }
  if (a.gate_logits) {
    linear_backward_weight(ctx, gate_input(args.embedding, a), s.dgate_logits, dw.gate.weight,
                           dw.gate.bias, args.write);
  }
  if (reads_embedding()) {
    linear_backward_input(ctx, s.dgate_logits, w.gate.weight, args.dembedding, Write::kAccumulate);
  }
  linear_backward_weight(ctx, a.normed.y, s.dqkv, dw.qkv.weight,
                         plan.fused_attention ? Tensor{} : dw.qkv.bias, args.write);
  linear_backward_input(ctx, s.dqkv, w.qkv.weight, args.dnormed, Write::kOverwrite);
  const NormGate gate = gate_behind_norm(reads_embedding(), w.gate, s.dgate_logits);
  norm_backward(ctx,
                {.x = args.x,
                 .normed = a.normed,
                 .gain = w.norm.gain,
                 .dx = args.dresidual,
                 .dweights = dw.norm,
                 .write = args.write,
                 .dbias_before = args.dbias_below,
                 .gate_weight = gate.weight,
                 .dlogits = gate.logits},
                args.dnormed);
}

}  // namespace carope
