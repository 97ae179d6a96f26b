#pragma once

#include <numbers>
#include <vector>

#include "core/context.h"
#include "ops/sequence.h"

// Phases are turns in unsigned 32-bit fixed point: addition wraps modulo one turn and is
// associative, so a phase is the same bits however a sequence is cut.
namespace carope {

/// How a head's D channels form P = D/2 rotary pairs.
enum class RotaryLayout : std::uint8_t {
  kHalf,         // (p, p + P)
  kInterleaved,  // (2p, 2p + 1)
};

inline constexpr double kTurnsPerRadian = 0x1p32 / (2.0 * std::numbers::pi);
/// Pairs a head may have; kernels keep one phase a pair on the stack.
inline constexpr std::int64_t kMaxRotaryPairs = 512;

/// RoPE's phase increments base^(-2p/D), in turns: [P].
std::vector<std::uint32_t> rope_increments(std::int64_t pairs, double base);

enum class Direction : std::uint8_t { kForward, kBackward };

struct Rotary {
  std::int64_t heads;
  RotaryLayout layout;
  Tensor increments;  // [P] u32
};

/// Rotates q and k in place by (position + 1) * increments; v is left alone. The backward direction
/// rotates the other way, which is its own gradient. qkv [B, T, 3C].
void rotary(Context& ctx, const Rotary& rotary, const Sequence& seq, Direction direction,
            const Tensor& qkv);

}  // namespace carope
