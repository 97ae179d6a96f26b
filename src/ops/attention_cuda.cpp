#include "ops/attention_cudnn.h"
#include "ops/attention_tiled.h"

namespace carope::cuda {

void attention(Context& ctx, const Attention& attention, const Sequence& seq, const Tensor& qkv,
               const Tensor& out, const Tensor& logsumexp) {
  const bool own = ctx.state<AttentionKernels>().own_only;
  if (!own && cudnn::serves(ctx, attention, seq, qkv)) {
    cudnn::attention(ctx, attention, seq, qkv, out, logsumexp);
  } else {
    tiled::attention(ctx, attention, seq, qkv, out, logsumexp);
  }
}

void attention_backward(Context& ctx, const Attention& attention, const Sequence& seq,
                        const AttentionBackward& args) {
  const bool own = ctx.state<AttentionKernels>().own_only;
  if (!own && cudnn::serves_backward(ctx, attention, seq, args.qkv)) {
    cudnn::attention_backward(ctx, attention, seq, args);
  } else {
    tiled::attention_backward(ctx, attention, seq, args);
  }
}

}  // namespace carope::cuda
