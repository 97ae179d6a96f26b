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
            const std::function<void()>& cudnn, const std::function<void()>& own) {
  using Use = AttentionKernels::Use;
  const Use use = ctx.state<AttentionKernels>().use;
  if (use == Use::kOwn || (use == Use::kFastest && ctx.deterministic()) || !cudnn_serves()) {
    own();
  } else if (use == Use::kCudnn) {
    cudnn();
  } else {
    const auto always = [] { return true; };
    ctx.state<Choices>().run_fastest(ctx, name, {{"cudnn", always, cudnn}, {"own", always, own}});
  }
}

}  // namespace

void attention(Context& ctx, const Attention& attention, const Sequence& seq, const Tensor& qkv,
               const Tensor& out, const Tensor& logsumexp) {
  choose(
      ctx, name_of("forward", attention, seq, qkv),
      [&] { return cudnn::serves(ctx, attention, seq, qkv); },
      [&] { cudnn::attention(ctx, attention, seq, qkv, out, logsumexp); },
      [&] { tiled::attention(ctx, attention, seq, qkv, out, logsumexp); });
}

void attention_backward(Context& ctx, const Attention& attention, const Sequence& seq,
                        const AttentionBackward& args) {
  choose(
      ctx, name_of("backward", attention, seq, args.qkv),
      [&] { return cudnn::serves_backward(ctx, attention, seq, args.qkv); },
      [&] { cudnn::attention_backward(ctx, attention, seq, args); },
      [&] { tiled::attention_backward(ctx, attention, seq, args); });
}

}  // namespace carope::cuda
