#include "core/parallel.h"
#include "ops/rotation/rotate_cpu.h"

namespace carope::cpu {
namespace {

void rotate_by_position(Context& ctx, const Rotation& rotation, const Sequence& seq,
                        Direction direction, const Heads& q, const Heads& k) {
  constexpr std::int64_t kTokens = 32;  // tokens a task
  const auto* increments = rotation.increments.data<std::uint32_t>();
  with_pairs(rotation.pairs, [&](auto pairs) {
    parallel_blocks(ctx, seq.tokens(), kTokens, [&](std::int64_t begin, std::int64_t end) {
      SinesOfHead sines(pairs);
      std::uint32_t phase[kMaxRotaryPairs];
      for (std::int64_t n = begin; n < end; ++n) {
        const std::int64_t b = n / seq.length;
        const std::int64_t t = n % seq.length;
        const auto steps = static_cast<std::uint32_t>(seq.position_of(b, t) + 1);
#pragma omp simd
        for (std::int64_t p = 0; p < pairs; ++p) {
          phase[p] = steps * increments[p];
        }
        sines.set(phase, direction, rotation.magnitude);
        for (const Heads* heads : {&q, &k}) {
          for (std::int64_t head = 0; head < heads->count; ++head) {
            sines.rotate(heads->at<float>(b, t, head), rotation.layout);
          }
        }
      }
    });
  });
}

}  // namespace

void rotate_fixed(Context& ctx, const Rotation& rotation, const Sequence& seq) {
  rotate_by_position(ctx, rotation, seq, Direction::kForward, rotation.q, rotation.k);
}

void rotate_fixed_backward(Context& ctx, const Rotation& rotation, const Sequence& seq,
                           const RotationGradients& gradients) {
  rotate_by_position(ctx, rotation, seq, Direction::kBackward, gradients.dq, gradients.dk);
}

}  // namespace carope::cpu
