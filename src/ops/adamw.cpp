#include "ops/adamw.h"

#include "ops/dispatch.h"

namespace carope {

namespace cpu {
decltype(carope::adamw) adamw;
decltype(carope::gradient_squares) gradient_squares;
}  // namespace cpu

namespace cuda {
decltype(carope::adamw) adamw;
decltype(carope::gradient_squares) gradient_squares;
}  // namespace cuda

namespace {

void check_squares(const Tensor& squares) {
  check_shape(squares, {1}, "the sum of the gradients' squares");
  check<ShapeError>(squares.dtype() == DType::kF64,
                    "the sum of the gradients' squares must be f64, not {}",
                    to_string(squares.dtype()));
}

}  // namespace

void gradient_squares(Context& ctx, std::span<const AdamwSlot> slots, const Tensor& squares) {
  check_squares(squares);
  for (const AdamwSlot& slot : slots) {
    check<ShapeError>(static_cast<bool>(slot.gradient), "a gradient is missing");
  }
  dispatch(ctx, cpu::gradient_squares, cuda::gradient_squares, slots, squares);
}

void adamw(Context& ctx, const Adamw& adamw, std::span<const AdamwSlot> slots,
           const Tensor& squares) {
  check_squares(squares);
  check<ShapeError>(adamw.step >= 1, "step = {} must count from 1", adamw.step);
  for (const AdamwSlot& slot : slots) {
    check<ShapeError>(static_cast<bool>(slot.value), "the parameter to update is missing");
    check_shape(slot.gradient, slot.value.shape(), "the gradient");
    check_shape(slot.first_moment, slot.value.shape(), "the first moment");
    check_shape(slot.second_moment, slot.value.shape(), "the second moment");
    if (slot.rounded) {
      check_shape(slot.rounded, slot.value.shape(), "the rounded copy");
    }
  }
  dispatch(ctx, cpu::adamw, cuda::adamw, adamw, slots, squares);
}

}  // namespace carope
