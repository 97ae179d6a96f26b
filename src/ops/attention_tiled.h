#pragma once

#include "ops/attention.h"

// This program's own attention kernels: every type, shape, document boundary and slope.
namespace carope::cuda::tiled {

void attention(Context& ctx, const Attention& attention, const Sequence& seq, const Tensor& qkv,
               const Tensor& out, const Tensor& logsumexp);
void attention_backward(Context& ctx, const Attention& attention, const Sequence& seq,
                        const AttentionBackward& args);

}  // namespace carope::cuda::tiled
