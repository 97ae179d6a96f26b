#include "ops/norm.h"

#include "ops/dispatch.h"

namespace carope {

namespace cpu {
decltype(carope::layer_norm) layer_norm;
decltype(carope::norm_backward) norm_backward;
}  // namespace cpu

namespace cuda {
decltype(carope::layer_norm) layer_norm;
decltype(carope::norm_backward) norm_backward;
}  // namespace cuda

namespace {

void check_norm(const Tensor& x, const Tensor& gain, const Tensor& bias) {
  check<ShapeError>(static_cast<bool>(x), "the input of a layer norm is missing");
  check_shape(gain, {x.cols()}, "the gain of a layer norm");
  check_shape(bias, {x.cols()}, "the bias of a layer norm");
}

void check_statistics(const Tensor& x, const Normed& normed) {
  check<ShapeError>(normed.mean && normed.mean.size() == x.rows() && normed.rstd &&
                        normed.rstd.size() == x.rows(),
                    "a layer norm of {} rows needs {} means and deviations", x.rows(), x.rows());
}

void check_gate(const Tensor& x, const Tensor& weight, const Tensor& logits) {
  check<ShapeError>(static_cast<bool>(weight) == static_cast<bool>(logits),
                    "a gate behind a layer norm needs both its weight and its logits");
  if (weight) {
    check<ShapeError>(weight.shape().rank() == 2 && weight.cols() == x.cols(),
                      "a gate's weight {} cannot take rows of {}", weight.shape(), x.cols());
    check<ShapeError>(logits.rows() == x.rows() && logits.cols() == weight.rows(),
                      "a gate of {} outputs gives {} rows no logits {}", weight.rows(), x.rows(),
                      logits.shape());
    check<ShapeError>(weight.dtype() == DType::kF32 && logits.dtype() == DType::kF32,
                      "a gate's weight and logits are f32, not {} and {}",
                      to_string(weight.dtype()), to_string(logits.dtype()));
  }
}

}  // namespace

void layer_norm(Context& ctx, const Tensor& x, const NormWeights& weights, const Normed& out,
                const NormGate& gate) {
  check_norm(x, weights.gain, weights.bias);
  check_statistics(x, out);
  check_shape(out.y, x.shape(), "the result of a layer norm");
  check_gate(x, gate.weight, gate.logits);
  if (gate.weight && gate.bias) {
    check_shape(gate.bias, {gate.weight.rows()}, "the bias of a gate");
  }
  dispatch(ctx, cpu::layer_norm, cuda::layer_norm, x, weights, out, gate);
}

void norm_backward(Context& ctx, const NormBackward& args, Tensor& dy) {
  check_norm(args.x, args.gain, args.dweights.bias);
  check_statistics(args.x, args.normed);
  check_shape(args.dweights.gain, {args.x.cols()}, "the gradient of a layer norm's gain");
  check_shape(dy, args.x.shape(), "the gradient of a layer norm's result");
  check_shape(args.dx, args.x.shape(), "the gradient of a layer norm's input");
  if (args.dbias_before) {
    check_shape(args.dbias_before, {args.x.cols()},
                "the sums of the gradient of a layer norm's input");
  }
  check_gate(args.x, args.gate_weight, args.dlogits);
  dispatch(ctx, cpu::norm_backward, cuda::norm_backward, args, dy);
}

}  // namespace carope
