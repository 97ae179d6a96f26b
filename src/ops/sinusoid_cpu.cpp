#include "ops/sinusoid.h"

#include "core/parallel.h"
#include "ops/simd_cpu.h"

namespace carope::cpu {

void add_sinusoid(Context& ctx, const Sequence& seq, const Tensor& increments, float scale,
                  const Tensor& x) {
  constexpr std::int64_t kTokens = 32;  // tokens a task
  const auto* turns = increments.data<std::uint32_t>();
  const std::int64_t pairs = increments.size();
  parallel_blocks(ctx, seq.tokens(), kTokens, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) {
      const auto position =
          static_cast<std::uint32_t>(seq.position_of(n / seq.length, n % seq.length));
      float* row = x.f32() + n * x.cols();
#pragma omp simd
      for (std::int64_t i = 0; i < pairs; ++i) {
        const SinCos value = sincos_turns(position * turns[i]);
        row[2 * i] += scale * value.sin;
        row[2 * i + 1] += scale * value.cos;
      }
    }
  });
}

}  // namespace carope::cpu
