#pragma once

#include "core/context.h"
#include "ops/rotary.h"
#include "ops/sequence.h"

namespace carope {

struct Carope {
  std::int64_t heads;
  RotaryLayout layout = RotaryLayout::kHalf;
  std::int64_t exponent_start = 0;  // pair p turns by f^(p + exponent_start)
  std::int64_t chunk = 512;         // tokens a task scans; no phase depends on it

  std::int64_t chunks(std::int64_t length) const { return (length + chunk - 1) / chunk; }
};

/// The shape of what carope() leaves for its backward pass besides its logits: the phase before
/// each chunk, [B, chunks, H, P] u32.
TensorSpec carope_carry_spec(const Carope& carope, const Sequence& seq, std::int64_t pairs);

/// The gate logit at which f^p is RoPE's base^(-2p/D).
double rope_gate_bias(std::int64_t pairs, double base);

/// Rotates q and k in place by φ_p(t) = Σ_{s<=t} f_s^(p + exponent_start), restarting at every
/// document. logits [B, T, H] fp32, qkv [B, T, 3C]; carry is a result. `state` [B, H, P] u32, if
/// given, is the phase before the first token and becomes the phase after the last one. `phases`
/// [B, T, H, P] u16, if given, is a result: φ rounded to 2^-16 turns.
void carope(Context& ctx, const Carope& carope, const Sequence& seq, const Tensor& logits,
            const Tensor& qkv, const Tensor& carry, const Tensor& state = {},
            const Tensor& phases = {});

struct CaropeBackward {
  Tensor logits;  // [B, T, H] as given to carope()
  Tensor carry;   // as carope() left it
  Tensor qkv;     // [B, T, 3C] rotated
  Tensor
      dqkv;  // [B, T, 3C] gradient of the rotated qkv; becomes, in place, that of the unrotated one
  Tensor dlogits;  // [B, T, H] result
};

void carope_backward(Context& ctx, const Carope& carope, const Sequence& seq,
                     const CaropeBackward& args);

}  // namespace carope
