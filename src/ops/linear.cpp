#include "ops/linear.h"

#include "ops/dispatch.h"

namespace carope {

namespace cpu {
decltype(carope::linear) linear;
decltype(carope::linear_add) linear_add;
decltype(carope::linear_gelu) linear_gelu;
decltype(carope::gelu) gelu;
decltype(carope::linear_backward_input) linear_backward_input;
decltype(carope::linear_backward_gelu) linear_backward_gelu;
decltype(carope::linear_backward_weight) linear_backward_weight;
}  // namespace cpu

namespace cuda {
decltype(carope::linear) linear;
decltype(carope::linear_add) linear_add;
decltype(carope::prefers_slopes) prefers_slopes;
decltype(carope::linear_gelu) linear_gelu;
decltype(carope::gelu) gelu;
decltype(carope::linear_backward_input) linear_backward_input;
decltype(carope::linear_backward_gelu) linear_backward_gelu;
decltype(carope::linear_backward_weight) linear_backward_weight;
}  // namespace cuda

namespace {

/// Checks that `out_rows` [N, O] = `in_rows` [N, I] through `weight` [O, I].
void check_layer(const Tensor& in_rows, const Tensor& weight, const Tensor& out_rows) {
  check<ShapeError>(in_rows && weight && out_rows, "a tensor of a linear layer is missing");
  check<ShapeError>(weight.shape().rank() == 2 && weight.dim(1) == in_rows.cols() &&
                        weight.dim(0) == out_rows.cols() && in_rows.rows() == out_rows.rows(),
                    "a linear layer cannot take {} through weight {} to {}", in_rows.shape(),
                    weight.shape(), out_rows.shape());
}

void check_bias(const Tensor& bias, const Tensor& weight) {
  if (bias) {
    check_shape(bias, {weight.dim(0)}, "the bias of a linear layer");
  }
}

}  // namespace

void linear(Context& ctx, const Tensor& x, const Tensor& weight, const Tensor& bias,
            const Tensor& y, Rounding rounding) {
  check_layer(x, weight, y);
  check_bias(bias, weight);
  dispatch(ctx, cpu::linear, cuda::linear, x, weight, bias, y, rounding);
}

void linear_add(Context& ctx, const Tensor& x, const Tensor& weight, const Tensor& bias,
                const Tensor& residual, const Tensor& y, Rounding rounding) {
  check_layer(x, weight, y);
  check_bias(bias, weight);
  check_shape(residual, y.shape(), "the residual that a layer adds to");
  check<ShapeError>(residual.raw() != y.raw(), "a layer cannot add to a residual in its place");
  dispatch(ctx, cpu::linear_add, cuda::linear_add, x, weight, bias, residual, y, rounding);
}

bool prefers_slopes(Device device, DType dtype, std::int64_t rows, std::int64_t in,
                    std::int64_t out) {
  return device.kind == DeviceKind::kCuda && cuda::prefers_slopes(device, dtype, rows, in, out);
}

void linear_gelu(Context& ctx, const Tensor& x, const Tensor& weight, const Tensor& bias,
                 const SavedGelu& saved, const Tensor& y, Rounding rounding) {
  check_layer(x, weight, y);
  check_bias(bias, weight);
  check<ShapeError>(saved.kept() || ctx.device().kind == DeviceKind::kCpu,
                    "on a GPU a GELU saves its input or its slope");
  if (saved.kept()) {
    check_shape(saved.kept(), y.shape(), "what a GELU saves");
  }
  dispatch(ctx, cpu::linear_gelu, cuda::linear_gelu, x, weight, bias, saved, y, rounding);
}

void gelu(Context& ctx, const Tensor& pre, const Tensor& y) {
  check<ShapeError>(static_cast<bool>(pre), "the input of the GELU is missing");
  check_shape(y, pre.shape(), "the result of the GELU");
  dispatch(ctx, cpu::gelu, cuda::gelu, pre, y);
}

void linear_backward_input(Context& ctx, const Tensor& dy, const Tensor& weight, const Tensor& dx,
                           Write write) {
  check_layer(dx, weight, dy);
  dispatch(ctx, cpu::linear_backward_input, cuda::linear_backward_input, dy, weight, dx, write);
}

void linear_backward_gelu(Context& ctx, const Tensor& dy, const Tensor& weight,
                          const SavedGelu& saved, const Tensor& dpre, const Tensor& dbias,
                          Write write) {
  check_layer(dpre, weight, dy);
  check_shape(saved.kept(), dpre.shape(), "what a GELU saved");
  if (dbias) {
    check_shape(dbias, {dpre.cols()}, "the bias of a linear layer");
  }
  dispatch(ctx, cpu::linear_backward_gelu, cuda::linear_backward_gelu, dy, weight, saved, dpre,
           dbias, write);
}

void linear_backward_weight(Context& ctx, const Tensor& x, const Tensor& dy, const Tensor& dweight,
                            const Tensor& dbias, Write write) {
  check<ShapeError>(x && dy && x.rows() == dy.rows(),
                    "the input and the result's gradient of a linear layer do not fit together");
  if (dweight) {
    check_layer(x, dweight, dy);
  }
  if (dbias) {
    check_shape(dbias, {dy.cols()}, "the bias of a linear layer");
  }
  dispatch(ctx, cpu::linear_backward_weight, cuda::linear_backward_weight, x, dy, dweight, dbias,
           write);
}

}  // namespace carope
