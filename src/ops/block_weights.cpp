#include "ops/block_weights.h"

#include "ops/dispatch.h"

namespace carope {

namespace cpu {
decltype(carope::block_weights) block_weights;
}  // namespace cpu

namespace cuda {
decltype(carope::block_weights) block_weights;
}  // namespace cuda

void block_weights(Context& ctx, const Tensor& logits, double temperature, const Tensor& weights) {
  check<ShapeError>(logits && logits.shape().rank() == 1 && temperature > 0.0,
                    "weights need a row of logits and a temperature above 0, not {}", temperature);
  check_shape(weights, {weight_blocks(logits.size()), 2}, "the blocks' weights");
  dispatch(ctx, cpu::block_weights, cuda::block_weights, logits, temperature, weights);
}

}  // namespace carope
