#pragma once

#include "core/context.h"
#include "ops/write.h"

namespace carope {

/// A layer norm's parameters, or their gradients.
struct NormWeights {
  Tensor gain;  // [C]
  Tensor bias;  // [C]
};

/// What a layer norm leaves behind: its result and what its backward pass needs besides the input.
struct Normed {
  Tensor y;     // [N, C]
  Tensor mean;  // [N]
  Tensor rstd;  // [N] 1 / standard deviation
};

inline constexpr float kNormEpsilon = 1e-5F;

/// A layer of few outputs that reads what a norm makes, as CARoPE's gate does: the norm's kernel
/// has its input at hand.
struct NormGate {
  Tensor weight;  // [K, C] f32, or empty: there is no such layer
  Tensor bias;    // [K] f32, or empty
  Tensor logits;  // [N, K] f32
};

/// out.y = gain (x - mean) / std + bias, row by row, and gate.logits = out.y Wᵀ + b, of y as it is
/// stored. On the CPU a row's logits are the same bits whichever rows come with it.
void layer_norm(Context& ctx, const Tensor& x, const NormWeights& weights, const Normed& out,
                const NormGate& gate = {});

struct NormBackward {
  Tensor x;       // [N, C] the norm's input
  Normed normed;  // mean and rstd of the forward pass
  Tensor gain;    // [C]
  Tensor dx;  // [N, C] the norm's contribution is added: a residual's gradient flows past the norm
  NormWeights dweights;
  Write write;  // of dweights and dbias_before
  /// [C] f32: the sums of the new dx's columns, or empty. They are the gradient of the bias in the
  /// layer whose output was added to the norm's input.
  Tensor dbias_before{};
  // With a gate the gradient of the norm's result is dy + dlogits W. Without one these are empty.
  Tensor gate_weight{};  // [K, C] f32
  Tensor dlogits{};      // [N, K] f32
};

/// `dy` [N, C] is the gradient of the norm's result. It is clobbered.
void norm_backward(Context& ctx, const NormBackward& args, Tensor& dy);

}  // namespace carope
