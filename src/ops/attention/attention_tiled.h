#pragma once

#include "ops/attention.h"

/// Causal attention in kernels of our own: on the tensor cores in bf16 with a head dimension of 32,
/// 64 or 128, in plain float arithmetic for everything else.
namespace carope::cuda::tiled {

void attention(Context& ctx, const Attention& attention, const Sequence& seq, const Tensor& qkv,
               const Tensor& out, const Tensor& logsumexp);

void attention_backward(Context& ctx, const Attention& attention, const Sequence& seq,
                        const AttentionBackward& args);

}  // namespace carope::cuda::tiled
