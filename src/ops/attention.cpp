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
decltype(carope::attention_backward_through) attention_backward_through;
decltype(carope::attention_goes_through) attention_goes_through;
decltype(carope::attention_rotates) attention_rotates;
decltype(carope::attention_through) attention_through;
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
  check<ShapeError>(seq.offset == 0, "attention from offset {} needs a cache of the earlier keys",
                    seq.offset);
}

void check_backward(const Attention& attention, const Sequence& seq,
                    const AttentionBackward& args) {
  check_attention(attention, seq, args.qkv, args.out);
  check<ShapeError>(seq.offset == 0, "attention from offset {} has no backward pass", seq.offset);
  check_shape(args.logsumexp, {seq.batch, attention.heads, seq.length}, "logsumexp");
  check_shape(args.dout, args.out.shape(), "dout");
  check_shape(args.dqkv, args.qkv.shape(), "dqkv");
}

void check_input(const Attention& attention, const Sequence& seq, const Tensor& qkv,
                 const AttentionInput& input) {
  const std::int64_t pairs = qkv.cols() / (6 * attention.heads);
  const Shape phases{seq.batch, seq.length, attention.heads, pairs};
  check<ShapeError>(!input.increments || !input.phases,
                    "attention's input was rotated by increments or by phases: give one of them");
  check<ShapeError>(static_cast<bool>(input.logits) == static_cast<bool>(input.phases),
                    "the phases of attention's input come from gate logits: give both or none");
  check<ShapeError>(input.exponent_start >= 0,
                    "exponent_start = {} of attention's input must not be negative",
                    input.exponent_start);
  if (input.increments) {
    check_shape(input.increments, {pairs}, "the increments of attention's input");
  }
  if (input.phases) {
    check_shape(input.phases, phases, "the phases of attention's input");
  }
  const Shape gates{seq.batch, seq.length, attention.heads};
  if (input.logits) {
    check_shape(input.logits, gates, "the gate logits of attention's input");
  }
  if (input.dlogits) {
    check_shape(input.dlogits, gates, "dlogits");
  }
  if (input.bias_gradient) {
    check_shape(input.bias_gradient, {qkv.cols()}, "the gradient of qkv's bias");
  }
}

}  // namespace

void attention(Context& ctx, const Attention& attention, const Sequence& seq, const Tensor& qkv,
               const Tensor& out, const Tensor& logsumexp) {
  check_forward(attention, seq, qkv, out, logsumexp);
  dispatch(ctx, cpu::attention, cuda::attention, attention, seq, qkv, out, logsumexp);
}

bool attention_rotates(Context& ctx, const Attention& attention, const Sequence& seq,
                       const Tensor& qkv) {
  return ctx.device().kind == DeviceKind::kCuda &&
         cuda::attention_rotates(ctx, attention, seq, qkv);
}

bool attention_through(Context& ctx, const Attention& attention, const Sequence& seq,
                       const AttentionInput& input, const Tensor& qkv, const Tensor& out,
                       const Tensor& logsumexp) {
  check_forward(attention, seq, qkv, out, logsumexp);
  check_input(attention, seq, qkv, input);
  return ctx.device().kind == DeviceKind::kCuda &&
         cuda::attention_through(ctx, attention, seq, input, qkv, out, logsumexp);
}

void attention_backward(Context& ctx, const Attention& attention, const Sequence& seq,
                        const AttentionBackward& args) {
  check_backward(attention, seq, args);
  dispatch(ctx, cpu::attention_backward, cuda::attention_backward, attention, seq, args);
}

bool attention_backward_through(Context& ctx, const Attention& attention, const Sequence& seq,
                                const AttentionBackward& args, const AttentionInput& input) {
  check_backward(attention, seq, args);
  check_input(attention, seq, args.qkv, input);
  check<ShapeError>(static_cast<bool>(input.dlogits) == static_cast<bool>(input.logits),
                    "dlogits is the gradient of the gate logits of attention's input: give both or "
                    "none");
  return ctx.device().kind == DeviceKind::kCuda &&
         cuda::attention_backward_through(ctx, attention, seq, args, input);
}

bool attention_goes_through(Device device, DType dtype, std::int64_t head_dim,
                            std::int64_t length) {
  return device.kind == DeviceKind::kCuda &&
         cuda::attention_goes_through(device, dtype, head_dim, length);
}

void attention_cached(Context& ctx, const Attention& attention, const Sequence& seq,
                      const Tensor& qkv, const KeyValueCache& cache, const Tensor& out) {
  check_attention(attention, seq, qkv, out);
  check<ShapeError>(cache.keys && cache.keys.shape().rank() == 3 &&
                        cache.keys.dim(0) == seq.batch && cache.keys.cols() == out.cols() &&
                        cache.values && cache.values.shape() == cache.keys.shape(),
                    "the key-value cache does not fit a batch of {} and a width of {}", seq.batch,
                    out.cols());
  check<ConfigError>(seq.offset + seq.length <= cache.keys.dim(1),
                     "{} tokens do not fit the key-value cache of {}; make it longer",
                     seq.offset + seq.length, cache.keys.dim(1));
  check<ShapeError>(!seq.document_start, "packed documents cannot be decoded through a cache");
  dispatch(ctx, cpu::attention_cached, cuda::attention_cached, attention, seq, qkv, cache, out);
}

}  // namespace carope
