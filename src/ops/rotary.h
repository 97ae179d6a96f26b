#pragma once

#include <cstdint>
#include <numbers>
#include <span>
#include <vector>

// The numbers of a rotary encoding. Angles are turns (of 2 pi radians) in unsigned 32-bit fixed
// point: addition wraps modulo one turn and is associative, so a phase has the same bits however a
// sequence is cut.
namespace carope {

/// How the channels of a head that turn form P rotary pairs.
enum class RotaryLayout : std::uint8_t {
  kHalf,         // (p, p + P)
  kInterleaved,  // (2p, 2p + 1)
};

inline constexpr double kTurnsPerRadian = 0x1p32 / (2.0 * std::numbers::pi);
/// Pairs a head may have; kernels keep one phase a pair on the stack.
inline constexpr std::int64_t kMaxRotaryPairs = 512;

/// RoPE's frequencies base^(-p/P), in radians a token: [P].
std::vector<double> rope_frequencies(std::int64_t pairs, double base);

/// Frequencies as phase increments, in turns.
std::vector<std::uint32_t> to_turns(std::span<const double> frequencies);

/// RoPE's phase increments, in turns: [P].
std::vector<std::uint32_t> rope_increments(std::int64_t pairs, double base);

/// The gate logit at which f^p is RoPE's base^(-p/P).
double rope_gate_bias(std::int64_t pairs, double base);

}  // namespace carope
