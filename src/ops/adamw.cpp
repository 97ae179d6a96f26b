#include "ops/adamw.h"

namespace carope {

namespace cpu {
decltype(carope::adamw) adamw;
decltype(carope::sum_of_squares) sum_of_squares;
}  // namespace cpu

void adamw(Context& ctx, const Adamw& adamw, const Tensor& value, const Tensor& gradient,
           const Tensor& first_moment, const Tensor& second_moment) {
  check<ShapeError>(static_cast<bool>(value), "the parameter to update is missing");
  check<ShapeError>(adamw.step >= 1, "step = {} must count from 1", adamw.step);
  check_shape(gradient, value.shape(), "the gradient");
  check_shape(first_moment, value.shape(), "the first moment");
  check_shape(second_moment, value.shape(), "the second moment");
  require_cpu(ctx, "adamw");
  cpu::adamw(ctx, adamw, value, gradient, first_moment, second_moment);
}

double sum_of_squares(Context& ctx, const Tensor& x) {
  check<ShapeError>(static_cast<bool>(x), "the tensor to sum is missing");
  require_cpu(ctx, "sum_of_squares");
  return cpu::sum_of_squares(ctx, x);
}

}  // namespace carope
