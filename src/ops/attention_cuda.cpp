#include <fmt/format.h>

#include "ops/attention/attention_cudnn.h"
#include "ops/attention/attention_tiled.h"
#include "ops/cuda/choices_cuda.h"

namespace carope::cuda {
namespace {

std::string name_of(const char* pass, const Attention& attention, const Sequence& seq,
                    const Tensor& qkv) {
  return fmt::format("attention.{}.{}x{}x{}x{}", pass, seq.batch, seq.length, attention.heads,
                     qkv.cols() / 3 / attention.heads);
}

/// Runs the kernels that the context asks for. A deterministic one gets our own: cuDNN's backward
/// pass would need room for all scores.
void choose(Context& ctx, const std::string& name, const std::function<bool()>& cudnn_serves,
            const std::function<bool()>& cudnn, const std::function<bool()>& own) {
  using Use = AttentionKernels::Use;
  const Use use = ctx.state<AttentionKernels>().use;
  if (use == Use::kOwn || (use == Use::kFastest && ctx.deterministic()) || !cudnn_serves()) {
    own();
  } else if (use == Use::kCudnn) {
    cudnn();
  } else {
    ctx.state<Choices>().take_fastest(ctx, name, {{"cudnn", cudnn}, {"own", own}});
  }
}

}  // namespace

void attention(Context& ctx, const Attention& attention, const Sequence& seq, const Tensor& qkv,
               const Tensor& out, const Tensor& logsumexp) {
  const auto own = [&] {
    tiled::attention(ctx, attention, seq, qkv, out, logsumexp);
    return true;
  };
  const auto cudnn = [&] {
    cudnn::attention(ctx, attention, seq, qkv, out, logsumexp);
    return true;
  };
  const auto serves = [&] { return cudnn::serves(ctx, attention, seq, qkv); };
  choose(ctx, name_of("forward", attention, seq, qkv), serves, cudnn, own);
}

void attention_backward(Context& ctx, const Attention& attention, const Sequence& seq,
                        const AttentionBackward& args) {
  const auto own = [&] {
    tiled::attention_backward(ctx, attention, seq, args);
    return true;
  };
  const auto cudnn = [&] {
    cudnn::attention_backward(ctx, attention, seq, args);
    return true;
  };
  const auto serves = [&] { return cudnn::serves_backward(ctx, attention, seq, args.qkv); };
  choose(ctx, name_of("backward", attention, seq, args.qkv), serves, cudnn, own);
}

}  // namespace carope::cuda
