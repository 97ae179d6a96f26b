#pragma once

#include "core/context.h"
#include "ops/rotation.h"
#include "ops/sequence.h"
#include "ops/write.h"

namespace carope {

/// Causal attention of H heads with scores s q·k / sqrt(D). Neither T x T scores nor probabilities
/// are ever stored: forward keeps one number a row, backward recomputes the rest tile by tile.
struct Attention {
  std::int64_t heads;
  Tensor slopes{};           // [H]: score -= slope * (distance from key to query); or empty
  float score_scale = 1.0F;  // s
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

/// What decides whether rotate_and_attend() serves.
struct RotatingAttention {
  DType dtype = DType::kF32;  // of qkv
  std::int64_t heads = 0, key_heads = 0, head_dim = 0;
  std::int64_t length = 0;      // tokens of a row
  std::int64_t rotary_dim = 0;  // channels of a head that turn; 0: none
  bool documents = false, slopes = false, ratios = false;
};

/// Whether the device has a kernel that rotates q and k and attends, and one for its backward pass.
bool serves_rotate_and_attend(Device device, const RotatingAttention& shape);

/// rotate(), by this rotation of qkv's q and k, and attention() in one kernel. With gate logits it
/// makes the rotation's phases where they are given. The rotation's magnitude is not looked at:
/// give its square as the scores' scale.
void rotate_and_attend(Context& ctx, const Attention& attention, const Sequence& seq,
                       const Rotation& rotation, const Tensor& qkv, const Tensor& out,
                       const Tensor& logsumexp);

/// Gradients that the backward pass of rotate_and_attend() makes besides dqkv.
struct RotateAndAttendGradients {
  Tensor dlogits{};                 // [B, T, K] f32 result, with gate logits
  Tensor dbias{};                   // [3C] f32 result: the sums of dqkv's columns; or empty
  Write write = Write::kOverwrite;  // of dbias
};

/// The backward pass of rotate_and_attend(): dqkv is that of q and k before the rotation, which is
/// undone by the phases that the forward pass made.
void rotate_and_attend_backward(Context& ctx, const Attention& attention, const Sequence& seq,
                                const Rotation& rotation, const AttentionBackward& args,
                                const RotateAndAttendGradients& gradients);

/// Which kernels attention uses on a CUDA device; each context keeps one of these.
struct AttentionKernels {
  explicit AttentionKernels(const Context&) {}

  enum class Use : std::uint8_t { kFastest, kOwn, kCudnn };
  Use use = Use::kFastest;  // other than that: for tests and measurements
};

/// So many tokens or fewer are decoded one by one on a GPU.
inline constexpr std::int64_t kMostDecoded = 4;

/// Keys and values of the tokens seen so far.
struct KeyValueCache {
  Tensor keys;    // [B, capacity, C]
  Tensor values;  // [B, capacity, C]
};

/// Appends k and v of the new tokens to the cache behind those that each row has seen, then attends
/// from the new queries to everything up to each of them.
void attention_cached(Context& ctx, const Attention& attention, const Sequence& seq,
                      const Tensor& qkv, const KeyValueCache& cache, const Tensor& out);

}  // namespace carope
