#include "core/parallel.h"
#include "ops/rotate_cpu.h"

namespace carope::cpu {

void rotary(Context& ctx, const Rotary& rotary, const Sequence& seq, Direction direction,
            const Tensor& qkv) {
  constexpr std::int64_t kTokens = 32;  // tokens a task
  const auto* increments = rotary.increments.data<std::uint32_t>();
  with_pairs(rotary.increments.size(), [&](auto pairs) {
    parallel_blocks(ctx, seq.tokens(), kTokens, [&](std::int64_t begin, std::int64_t end) {
      Rotation rotation(pairs);
      std::uint32_t phase[kMaxRotaryPairs];
      for (std::int64_t n = begin; n < end; ++n) {
        const auto steps =
            static_cast<std::uint32_t>(seq.position_of(n / seq.length, n % seq.length) + 1);
#pragma omp simd
        for (std::int64_t p = 0; p < pairs; ++p) {
          phase[p] = steps * increments[p];
        }
        rotation.set(phase, direction);
        float* q = qkv.f32() + n * qkv.cols();
        for (std::int64_t head = 0; head < 2 * rotary.heads; ++head) {  // q's heads, then k's
          rotation.apply(q + head * 2 * pairs, rotary.layout);
        }
      }
    });
  });
}

}  // namespace carope::cpu
