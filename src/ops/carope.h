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

/// What carope() leaves for its backward pass. The frequency f = 1 / (softplus(z) + 1) is kept as a
/// 32-bit fraction, off by at most 2^-33; fp32 would be off by 2^-25, which is 2e-4 rad after 4096
/// tokens.
struct CaropeSaved {
  Tensor frequency;  // [B, T, H] u32
  Tensor carry;      // [B, chunks, H, P] u32: the phase before each chunk
};

/// The shapes of CaropeSaved for a sequence.
TensorSpec carope_frequency_spec(const Carope& carope, const Sequence& seq);
TensorSpec carope_carry_spec(const Carope& carope, const Sequence& seq, std::int64_t pairs);

/// f = 1 / (softplus(z) + 1) as a 32-bit fraction: exact to 2^-33, where fp32 would be off by
/// 2^-25.
std::uint32_t frequency_of_logit(float z);
/// The gate logit at which f^p is RoPE's base^(-2p/D).
double rope_gate_bias(std::int64_t pairs, double base);

/// Rotates q and k in place by φ_p(t) = Σ_{s<=t} f_s^(p + exponent_start), restarting at every
/// document. logits [B, T, H] fp32, qkv [B, T, 3C]. `state` [B, H, P] u32, if given, is the phase
/// before the first token and becomes the phase after the last one.
void carope(Context& ctx, const Carope& carope, const Sequence& seq, const Tensor& logits,
            const Tensor& qkv, const CaropeSaved& saved, const Tensor& state = {});

/// From the rotated qkv and the gradient of it: turns dqkv in place into the gradient before
/// rotation and writes the gradient of the gate logits. dlogits [B, T, H].
void carope_backward(Context& ctx, const Carope& carope, const Sequence& seq,
                     const CaropeSaved& saved, const Tensor& qkv, const Tensor& dqkv,
                     const Tensor& dlogits);

}  // namespace carope
