#pragma once

#include "ops/attention.h"

// Attention through NVIDIA's cuDNN. A build without it links no_cudnn.cpp, which serves nothing.
namespace carope::cuda::cudnn {

/// Whether cuDNN computes this attention: causal, bf16, whole sequences of one document without
/// slopes. The first call for a shape plans it, which takes a moment and must not be captured into
/// a CUDA graph.
bool serves(Context& ctx, const Attention& attention, const Sequence& seq, const Tensor& qkv);
/// The same of the backward pass; where equal bits are asked for, it may need too much scratch.
bool serves_backward(Context& ctx, const Attention& attention, const Sequence& seq,
                     const Tensor& qkv);

/// As carope::attention, for what cuDNN serves.
void attention(Context& ctx, const Attention& attention, const Sequence& seq, const Tensor& qkv,
               const Tensor& out, const Tensor& logsumexp);
/// As carope::attention_backward, for what cuDNN serves.
void attention_backward(Context& ctx, const Attention& attention, const Sequence& seq,
                        const AttentionBackward& args);

}  // namespace carope::cuda::cudnn
