#pragma once

#include "core/context.h"
#include "ops/heads.h"
#include "ops/rotary.h"

namespace carope {

/// A rotation of q and k, as every kernel knows it. Pair (x, y) of a token becomes
///   m (x cos φ - y sin φ, x sin φ + y cos φ),
/// where the phase φ[b, t, h, p] belongs to a key head h, and to the query heads that share it:
///   with increments: φ_p(t) = (position + 1) increments_p,
///   with logits:     φ_p(t) = Σ_{s <= t} ratio_p f(z_s)^(p + exponent_start), restarting at each
///                    document, where f(z) = 1 / (softplus(z) + 1),
///   with neither:    q and k stay as they are.
struct Rotation {
  Heads q{}, k{};  // H query heads and K key heads; K divides H
  RotaryLayout layout = RotaryLayout::kHalf;
  std::int64_t pairs = 0;  // P: the first 2P channels of each head turn
  float magnitude = 1.0F;  // m

  Tensor increments{};  // [P] u32

  Tensor logits{};  // [B, T, K] f32
  Tensor ratios{};  // [P] f64; empty: all are 1
  std::int64_t exponent_start = 0;
  std::int64_t chunk = 512;  // tokens that a task scans; no phase depends on it
  /// [B, chunks, K, P] u32: the phase before each chunk, made by rotate() for rotate_backward().
  Tensor carry{};
  /// [B, K, P] u32, or empty for zeros: the phase before each row's first token. rotate() replaces
  /// it by the phase after the last one.
  Tensor state{};
  /// [B, T, K, P] u16, or empty: φ rounded to 2^-16 turns, made by rotate_and_attend() for its
  /// backward pass, or by rotate().
  Tensor phases{};

  std::int64_t chunks(std::int64_t length) const { return (length + chunk - 1) / chunk; }
  TensorSpec carry_spec(const Sequence& seq) const {
    return {{seq.batch, chunks(seq.length), k.count, pairs}, DType::kU32};
  }
};

/// Throws unless the rotation's tensors fit each other and the sequence.
void check_rotation(const Rotation& rotation, const Sequence& seq);

/// Rotates q and k in place.
void rotate(Context& ctx, const Rotation& rotation, const Sequence& seq);

/// Gradients with respect to a rotation's inputs.
struct RotationGradients {
  Heads dq, dk;      // of the rotated q and k; become, in place, those of the unrotated ones
  Tensor dlogits{};  // [B, T, K] f32 result, with logits
};

/// The backward pass of rotate(), whose q, k and carry are still there.
void rotate_backward(Context& ctx, const Rotation& rotation, const Sequence& seq,
                     const RotationGradients& gradients);

}  // namespace carope
