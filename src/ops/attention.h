#pragma once

#include "core/context.h"
#include "ops/sequence.h"

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
