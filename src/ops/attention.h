#pragma once

#include "core/context.h"
#include "ops/rotary.h"
#include "ops/sequence.h"
#include "ops/write.h"

namespace carope {

/// Causal attention of H heads with scores q·k / sqrt(D). Neither T x T scores nor probabilities
/// are ever stored: forward keeps one number a row, backward recomputes the rest tile by tile.
struct Attention {
  std::int64_t heads;
  Tensor slopes{};  // [H]: score -= slope * (distance from key to query); or empty
};

/// out = softmax(q kᵀ) v within each document. qkv [B, T, 3C], out [B, T, C]; logsumexp [B, H, T]
/// of the scores is what the backward pass needs.
void attention(Context& ctx, const Attention& attention, const Sequence& seq, const Tensor& qkv,
               const Tensor& out, const Tensor& logsumexp);

struct AttentionBackward {
  Tensor qkv;        // [B, T, 3C]
  Tensor out;        // [B, T, C]
  Tensor logsumexp;  // [B, H, T]
  Tensor dout;       // [B, T, C]
  Tensor dqkv;       // [B, T, 3C] result
};

void attention_backward(Context& ctx, const Attention& attention, const Sequence& seq,
                        const AttentionBackward& args);

/// What happens to qkv before attention, for a pass that does that too: a bias is added, then q and
/// k are rotated by (t + 1) increments, as carope() does it from gate logits, or not at all.
struct AttentionInput {
  RotaryLayout layout = RotaryLayout::kHalf;
  Tensor increments{};  // [P] u32
  // CARoPE's gates, and phases: the forward pass makes them, the backward pass takes them.
  Tensor logits{};                  // [B, T, H] f32
  std::int64_t exponent_start = 0;  // pair p turns by f^(p + exponent_start)
  Tensor phases{};                  // [B, T, H, P] u16, in 2^-16 turns
  // Of the backward pass only.
  Tensor dlogits{};                 // [B, T, H] f32 result, with logits
  Tensor bias_gradient{};           // [3C] f32 result: the sums of dqkv's columns; or empty
  Write write = Write::kOverwrite;  // of bias_gradient
};

/// Whether attention_through() takes such a qkv.
bool attention_rotates(Context& ctx, const Attention& attention, const Sequence& seq,
                       const Tensor& qkv);

/// attention() from q and k as they are before the rotation, which it does in place. Returns false,
/// having done nothing, where no kernel does both.
bool attention_through(Context& ctx, const Attention& attention, const Sequence& seq,
                       const AttentionInput& input, const Tensor& qkv, const Tensor& out,
                       const Tensor& logsumexp);

/// attention_backward() with dqkv as it was before the rotation. Returns false, having done
/// nothing, where no kernel goes that far.
bool attention_backward_through(Context& ctx, const Attention& attention, const Sequence& seq,
                                const AttentionBackward& args, const AttentionInput& input);

/// Whether attention_backward_through() goes that far for whole documents of such a length.
bool attention_goes_through(Device device, DType dtype, std::int64_t head_dim, std::int64_t length);

/// Which kernels attention uses on a CUDA device; each context keeps one of these.
struct AttentionKernels {
  explicit AttentionKernels(const Context&) {}

  enum class Use : std::uint8_t { kFastest, kOwn, kCudnn };
  Use use = Use::kFastest;  // other than that: for tests and measurements
};

/// Keys and values of the tokens seen so far.
struct KeyValueCache {
  Tensor keys;    // [B, capacity, C]
  Tensor values;  // [B, capacity, C]
};

/// Appends k and v of the new tokens to the cache at seq.offset, then attends from the new queries
/// to everything up to each of them.
void attention_cached(Context& ctx, const Attention& attention, const Sequence& seq,
                      const Tensor& qkv, const KeyValueCache& cache, const Tensor& out);

}  // namespace carope
