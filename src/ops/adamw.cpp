#include "ops/adamw.h"

#include "ops/dispatch.h"

namespace carope {

namespace cpu {
decltype(carope::adamw) adamw;
decltype(carope::gradient_norm) gradient_norm;
}  // namespace cpu

namespace cuda {
decltype(carope::adamw) adamw;
decltype(carope::gradient_norm) gradient_norm;
}  // namespace cuda

namespace {

void check_norm(const Tensor& norm) {
  check_shape(norm, {1}, "the norm of the gradients");
  check<ShapeError>(norm.dtype() == DType::kF64, "the norm of the gradients must be f64, not {}",
                    to_string(norm.dtype()));
}

}  // namespace

void gradient_norm(Context& ctx, std::span<const AdamwSlot> slots, const Tensor& norm) {
  check_norm(norm);
  for (const AdamwSlot& slot : slots) {
    check<ShapeError>(static_cast<bool>(slot.gradient), "a gradient is missing");
  }
  dispatch(ctx, cpu::gradient_norm, cuda::gradient_norm, slots, norm);
}

void adamw(Context& ctx, const Adamw& adamw, std::span<const AdamwSlot> slots, const Tensor& norm) {
  check_norm(norm);
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
  dispatch(ctx, cpu::adamw, cuda::adamw, adamw, slots, norm);
}

}  // namespace carope
