#include "ops/carope.h"

#include "ops/dispatch.h"

#include <cmath>

namespace carope {

namespace cpu {
decltype(carope::carope) carope;
decltype(carope::carope_backward) carope_backward;
}  // namespace cpu

namespace cuda {
decltype(carope::carope) carope;
decltype(carope::carope_backward) carope_backward;
}  // namespace cuda

namespace {

void check_gates(const Carope& carope, const Sequence& seq, const Tensor& logits,
                 std::int64_t pairs) {
  check<ShapeError>(pairs <= kMaxRotaryPairs, "a head has {} rotary pairs; at most {} are possible",
                    pairs, kMaxRotaryPairs);
  check<ShapeError>(carope.chunk > 0 && carope.exponent_start >= 0,
                    "chunk = {} must be positive and exponent_start = {} not negative",
                    carope.chunk, carope.exponent_start);
  check_shape(logits, {seq.batch, seq.length, carope.heads}, "the gate logits");
}

void check_carope(const Carope& carope, const Sequence& seq, const Tensor& logits,
                  const Tensor& qkv, const Tensor& carry) {
  check_sequence(seq, qkv, "qkv");
  check<ShapeError>(carope.heads > 0 && qkv.cols() % (6 * carope.heads) == 0,
                    "qkv of width {} does not hold q, k and v of {} heads with an even dimension",
                    qkv.cols(), carope.heads);
  const std::int64_t pairs = qkv.cols() / (6 * carope.heads);
  check_gates(carope, seq, logits, pairs);
  check_shape(carry, carope_carry_spec(carope, seq, pairs).shape, "the carries");
}

}  // namespace

TensorSpec carope_carry_spec(const Carope& carope, const Sequence& seq, std::int64_t pairs) {
  return {{seq.batch, carope.chunks(seq.length), carope.heads, pairs}, DType::kU32};
}

double rope_gate_bias(std::int64_t pairs, double base) {
  // softplus⁻¹(y) = ln(expm1(y)), written so that it cannot overflow.
  const double softplus = std::pow(base, 1.0 / static_cast<double>(pairs)) - 1.0;
  return softplus + std::log(-std::expm1(-softplus));
}

void carope(Context& ctx, const Carope& carope, const Sequence& seq, const Tensor& logits,
            const Tensor& qkv, const Tensor& carry, const Tensor& state, const Tensor& phases) {
  check_carope(carope, seq, logits, qkv, carry);
  if (state) {
    check_shape(state, {seq.batch, carope.heads, carry.cols()}, "the phase state");
  }
  if (phases) {
    check_shape(phases, {seq.batch, seq.length, carope.heads, carry.cols()}, "the phases");
  }
  dispatch(ctx, cpu::carope, cuda::carope, carope, seq, logits, qkv, carry, state, phases);
}

void carope_backward(Context& ctx, const Carope& carope, const Sequence& seq,
                     const CaropeBackward& args) {
  check_carope(carope, seq, args.logits, args.qkv, args.carry);
  check_shape(args.dlogits, args.logits.shape(), "dlogits");
  check_shape(args.dqkv, args.qkv.shape(), "dqkv");
  dispatch(ctx, cpu::carope_backward, cuda::carope_backward, carope, seq, args);
}

}  // namespace carope
