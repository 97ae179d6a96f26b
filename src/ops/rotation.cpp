#include "ops/rotation.h"

#include "ops/dispatch.h"

namespace carope {

namespace cpu {
decltype(carope::rotate) rotate_fixed;
decltype(carope::rotate_backward) rotate_fixed_backward;
decltype(carope::rotate) rotate_gated;
decltype(carope::rotate_backward) rotate_gated_backward;
}  // namespace cpu

namespace cuda {
decltype(carope::rotate) rotate_fixed;
decltype(carope::rotate_backward) rotate_fixed_backward;
decltype(carope::rotate) rotate_gated;
decltype(carope::rotate_backward) rotate_gated_backward;
}  // namespace cuda

namespace {

void check_gated(const Rotation& rotation, const Sequence& seq) {
  check<ShapeError>(rotation.chunk > 0 && rotation.exponent_start >= 0,
                    "chunk = {} must be positive and exponent_start = {} not negative",
                    rotation.chunk, rotation.exponent_start);
  check_shape(rotation.logits, {seq.batch, seq.length, rotation.k.count}, "the gate logits");
  if (rotation.ratios) {
    check_shape(rotation.ratios, {rotation.pairs}, "the ratios of a rotation");
  }
  if (rotation.state) {
    check_shape(rotation.state, {seq.batch, rotation.k.count, rotation.pairs}, "the phase state");
  }
  if (rotation.phases) {
    check_shape(rotation.phases, {seq.batch, seq.length, rotation.k.count, rotation.pairs},
                "the phases");
  }
}

void check_carry(const Rotation& rotation, const Sequence& seq) {
  check_shape(rotation.carry, rotation.carry_spec(seq).shape, "the carries");
}

}  // namespace

void check_rotation(const Rotation& rotation, const Sequence& seq) {
  const Heads& q = rotation.q;
  const Heads& k = rotation.k;
  check<ShapeError>(q && k && q.dim == k.dim && q.dtype == k.dtype,
                    "a rotation needs q and k of one type, with heads of one dimension");
  check<ShapeError>(k.count > 0 && q.count > 0 && q.count % k.count == 0,
                    "{} key heads cannot be shared by {} query heads", k.count, q.count);
  check<ShapeError>(
      0 < rotation.pairs && rotation.pairs <= kMaxRotaryPairs && 2 * rotation.pairs <= q.dim,
      "{} rotary pairs are not possible in a head of {} channels (at most {})", rotation.pairs,
      q.dim, kMaxRotaryPairs);
  check<ShapeError>(!rotation.increments || !rotation.logits,
                    "a rotation has increments or gate logits: give one of them");
  if (rotation.increments) {
    check_shape(rotation.increments, {rotation.pairs}, "the increments of a rotation");
  }
  if (rotation.logits) {
    check_gated(rotation, seq);
  }
}

void rotate(Context& ctx, const Rotation& rotation, const Sequence& seq) {
  check_rotation(rotation, seq);
  if (rotation.logits) {
    check_carry(rotation, seq);
    dispatch(ctx, cpu::rotate_gated, cuda::rotate_gated, rotation, seq);
  } else if (rotation.increments) {
    dispatch(ctx, cpu::rotate_fixed, cuda::rotate_fixed, rotation, seq);
  }
}

void rotate_backward(Context& ctx, const Rotation& rotation, const Sequence& seq,
                     const RotationGradients& gradients) {
  check_rotation(rotation, seq);
  const auto same_shape = [](const Heads& a, const Heads& b) {
    return a && a.dtype == b.dtype && a.count == b.count && a.dim == b.dim;
  };
  check<ShapeError>(same_shape(gradients.dq, rotation.q) && same_shape(gradients.dk, rotation.k),
                    "the gradients of q and k must have the shape and type of q and k");
  if (rotation.logits) {
    check_carry(rotation, seq);
    check_shape(gradients.dlogits, rotation.logits.shape(), "dlogits");
    dispatch(ctx, cpu::rotate_gated_backward, cuda::rotate_gated_backward, rotation, seq,
             gradients);
  } else if (rotation.increments) {
    dispatch(ctx, cpu::rotate_fixed_backward, cuda::rotate_fixed_backward, rotation, seq,
             gradients);
  }
}

}  // namespace carope
