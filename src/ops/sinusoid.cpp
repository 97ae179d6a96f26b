#include "ops/sinusoid.h"

namespace carope {

namespace cpu {
decltype(carope::add_sinusoid) add_sinusoid;
}  // namespace cpu

void add_sinusoid(Context& ctx, const Sequence& seq, const Tensor& increments, float scale,
                  const Tensor& x) {
  check_sequence(seq, x, "the tensor that sinusoids are added to");
  check<ShapeError>(x.cols() % 2 == 0, "sinusoids need an even width, not {}", x.cols());
  check_shape(increments, {x.cols() / 2}, "the increments of the sinusoids");
  require_cpu(ctx, "add_sinusoid");
  cpu::add_sinusoid(ctx, seq, increments, scale, x);
}

}  // namespace carope
