#include "ops/offsets.h"

#include "ops/dispatch.h"

namespace carope {

namespace cpu {
decltype(carope::advance) advance;
}  // namespace cpu

namespace cuda {
decltype(carope::advance) advance;
}  // namespace cuda

void advance(Context& ctx, const Tensor& offsets, std::int64_t tokens) {
  dispatch(ctx, cpu::advance, cuda::advance, offsets, tokens);
}

}  // namespace carope
