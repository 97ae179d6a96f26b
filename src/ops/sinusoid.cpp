#include "ops/sinusoid.h"

#include "ops/dispatch.h"

namespace carope {

namespace cpu {
decltype(carope::add_sinusoid) add_sinusoid;
}  // namespace cpu

namespace cuda {
decltype(carope::add_sinusoid) add_sinusoid;
}  // namespace cuda

void add_sinusoid(Context& ctx, const Sequence& seq, const Tensor& increments, float scale,
                  const Tensor& x) {
  check_sequence(seq, x, "the tensor that sinusoids are added to");
  check<ShapeError>(x.cols() % 2 == 0, "sinusoids need an even width, not {}", x.cols());
  check_shape(increments, {x.cols() / 2}, "the increments of the sinusoids");
  dispatch(ctx, cpu::add_sinusoid, cuda::add_sinusoid, seq, increments, scale, x);
}

}  // namespace carope
