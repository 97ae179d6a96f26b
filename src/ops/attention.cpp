#include "ops/attention.h"

#include "ops/dispatch.h"

namespace carope {

namespace cpu {
decltype(carope::attention) attention;
decltype(carope::attention_backward) attention_backward;
decltype(carope::attention_cached) attention_cached;
}  // namespace cpu

namespace cuda {
decltype(carope::attention) attention;
decltype(carope::attention_backward) attention_backward;
decltype(carope::rotate_and_attend) rotate_and_attend;
decltype(carope::rotate_and_attend_backward) rotate_and_attend_backward;
decltype(carope::serves_rotate_and_attend) serves_rotate_and_attend;
decltype(carope::attention_cached) attention_cached;
}  // namespace cuda

namespace {

void check_attention(const Attention& attention, const Sequence& seq, const Tensor& qkv,
                     const Tensor& out) {
  check_sequence(seq, qkv, "qkv");
  check_sequence(seq, out, "the result of attention");
  check<ShapeError>(
      qkv.cols() == 3 * out.cols() && attention.heads > 0 && out.cols() % attention.heads == 0,
      "qkv of width {} does not hold q, k and v of {} heads for a result of width {}", qkv.cols(),
      attention.heads, out.cols());
  if (attention.slopes) {
    check_shape(attention.slopes, {attention.heads}, "the slopes of attention");
  }
}

void check_forward(const Attention& attention, const Sequence& seq, const Tensor& qkv,
                   const Tensor& out, const Tensor& logsumexp) {
  check_attention(attention, seq, qkv, out);
  check_shape(logsumexp, {seq.batch, attention.heads, seq.length}, "logsumexp");
  check<ShapeError>(!seq.offsets, "a sequence that continues needs a cache of its earlier keys");
}

void check_backward(const Attention& attention, const Sequence& seq,
                    const AttentionBackward& args) {
  check_attention(attention, seq, args.qkv, args.out);
  check<ShapeError>(!seq.offsets, "attention of a sequence that continues has no backward pass");
  check_shape(args.logsumexp, {seq.batch, attention.heads, seq.length}, "logsumexp");
  check_shape(args.dout, args.out.shape(), "dout");
  check_shape(args.dqkv, args.qkv.shape(), "dqkv");
}

void check_rotating(const Context& ctx, const Attention& attention, const Sequence& seq,
                    const Rotation& rotation, const Tensor& qkv) {
  check_rotation(rotation, seq);
  const QkvHeads parts = split_qkv(qkv, seq, attention.heads, attention.heads);
  check<ShapeError>(rotation.q.data == parts.q.data && rotation.k.data == parts.k.data,
                    "the rotation in attention must be that of qkv's q and k");
  const bool turns = rotation.increments || rotation.logits;
  check<ShapeError>(
      serves_rotate_and_attend(ctx.device(), {.dtype = qkv.dtype(),
                                              .heads = attention.heads,
                                              .key_heads = rotation.k.count,
                                              .head_dim = parts.q.dim,
                                              .length = seq.length,
                                              .rotary_dim = turns ? 2 * rotation.pairs : 0,
                                              .documents = static_cast<bool>(seq.document_start),
                                              .slopes = static_cast<bool>(attention.slopes),
                                              .ratios = static_cast<bool>(rotation.ratios)}),
      "no kernel of this device rotates and attends over {} x {} tokens with {} "
      "heads of {} {} channels",
      seq.batch, seq.length, attention.heads, parts.q.dim, to_string(qkv.dtype()));
}

}  // namespace

void attention(Context& ctx, const Attention& attention, const Sequence& seq, const Tensor& qkv,
               const Tensor& out, const Tensor& logsumexp) {
  check_forward(attention, seq, qkv, out, logsumexp);
  dispatch(ctx, cpu::attention, cuda::attention, attention, seq, qkv, out, logsumexp);
}

bool serves_rotate_and_attend(Device device, const RotatingAttention& shape) {
  return device.kind == DeviceKind::kCuda && cuda::serves_rotate_and_attend(device, shape);
}

void rotate_and_attend(Context& ctx, const Attention& attention, const Sequence& seq,
                       const Rotation& rotation, const Tensor& qkv, const Tensor& out,
                       const Tensor& logsumexp) {
  check_forward(attention, seq, qkv, out, logsumexp);
  check_rotating(ctx, attention, seq, rotation, qkv);
  cuda::rotate_and_attend(ctx, attention, seq, rotation, qkv, out, logsumexp);
}

void attention_backward(Context& ctx, const Attention& attention, const Sequence& seq,
                        const AttentionBackward& args) {
  check_backward(attention, seq, args);
  dispatch(ctx, cpu::attention_backward, cuda::attention_backward, attention, seq, args);
}

void rotate_and_attend_backward(Context& ctx, const Attention& attention, const Sequence& seq,
                                const Rotation& rotation, const AttentionBackward& args,
                                const RotateAndAttendGradients& gradients) {
  check_backward(attention, seq, args);
  check_rotating(ctx, attention, seq, rotation, args.qkv);
  if (rotation.logits) {
    check_shape(gradients.dlogits, rotation.logits.shape(), "dlogits");
    check<ShapeError>(static_cast<bool>(rotation.phases),
                      "the backward pass needs the phases that the forward pass made");
  }
  if (gradients.dbias) {
    check_shape(gradients.dbias, {args.qkv.cols()}, "the gradient of qkv's bias");
  }
  cuda::rotate_and_attend_backward(ctx, attention, seq, rotation, args, gradients);
}

void attention_cached(Context& ctx, const Attention& attention, const Sequence& seq,
                      const Tensor& qkv, const KeyValueCache& cache, const Tensor& out) {
  check_attention(attention, seq, qkv, out);
  check<ShapeError>(cache.keys && cache.keys.shape().rank() == 3 &&
                        cache.keys.dim(0) == seq.batch && cache.keys.cols() == out.cols() &&
                        cache.values && cache.values.shape() == cache.keys.shape(),
                    "the key-value cache does not fit a batch of {} and a width of {}", seq.batch,
                    out.cols());
  check<ConfigError>(longest_row(seq) <= cache.keys.dim(1),
                     "{} tokens do not fit the key-value cache of {}; make it longer",
                     longest_row(seq), cache.keys.dim(1));
  check<ShapeError>(!seq.document_start, "packed documents cannot be decoded through a cache");
  dispatch(ctx, cpu::attention_cached, cuda::attention_cached, attention, seq, qkv, cache, out);
}

}  // namespace carope
