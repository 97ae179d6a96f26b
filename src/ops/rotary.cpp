#include "ops/rotary.h"

#include "ops/dispatch.h"

#include <cmath>

namespace carope {

namespace cpu {
decltype(carope::rotary) rotary;
}  // namespace cpu

namespace cuda {
decltype(carope::rotary) rotary;
}  // namespace cuda

std::vector<std::uint32_t> rope_increments(std::int64_t pairs, double base) {
  std::vector<std::uint32_t> increments;
  for (std::int64_t p = 0; p < pairs; ++p) {
    const double radians = std::pow(base, -static_cast<double>(p) / static_cast<double>(pairs));
    increments.push_back(static_cast<std::uint32_t>(std::llround(radians * kTurnsPerRadian)));
  }
  return increments;
}

void rotary(Context& ctx, const Rotary& rotary, const Sequence& seq, Direction direction,
            const Tensor& qkv) {
  check_sequence(seq, qkv, "qkv");
  const std::int64_t pairs = rotary.increments.size();
  check<ShapeError>(
      qkv.cols() == 3 * rotary.heads * 2 * pairs && pairs <= kMaxRotaryPairs,
      "qkv of width {} does not hold q, k and v of {} heads with {} rotary pairs (at most {})",
      qkv.cols(), rotary.heads, pairs, kMaxRotaryPairs);
  dispatch(ctx, cpu::rotary, cuda::rotary, rotary, seq, direction, qkv);
}

}  // namespace carope
