#include "ops/sum.h"

#include "ops/dispatch.h"

namespace carope {

namespace cpu {
decltype(carope::add_sum) add_sum;
}  // namespace cpu

namespace cuda {
decltype(carope::add_sum) add_sum;
}  // namespace cuda

void add_sum(Context& ctx, const Tensor& x, double scale, const Tensor& total) {
  check<ShapeError>(static_cast<bool>(x), "the tensor to sum is missing");
  check_shape(total, {1}, "the total of a sum");
  check<ShapeError>(total.dtype() == DType::kF64, "a total must be f64, not {}",
                    to_string(total.dtype()));
  dispatch(ctx, cpu::add_sum, cuda::add_sum, x, scale, total);
}

}  // namespace carope
