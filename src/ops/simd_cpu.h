#pragma once

#include <bit>
#include <cstdint>

// Elementary functions without branches or calls, so that the compiler can vectorise loops over
// them. Each is accurate to about one unit in the last place of fp32.
namespace carope::cpu {

/// a b + c, rounded once where the machine does that at no cost. Left to itself a compiler may fuse
/// `a * b + c` in one loop and not in the next: this is for results that must be the same bits.
inline float multiply_add(float a, float b, float c) {
#ifdef __FP_FAST_FMAF
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

/// e^x; 0 below the smallest normal number, NaN for NaN.
inline float exp_f32(float x) {
  constexpr float kLog2E = 1.44269504F;
  constexpr float kLn2High = 0.693145752F;  // 16 significant bits: n * kLn2High is exact
  constexpr float kLn2Low = 1.42860677e-6F;
  constexpr float kLowest = -87.3365402F;
  constexpr float kHighest = 88.3762589F;
  constexpr float kRounder = 12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer
  const float clamped = x < kLowest ? kLowest : (x > kHighest ? kHighest : x);
  const float shifted = clamped * kLog2E + kRounder;
  const float n = shifted - kRounder;
  const float r = (clamped - n * kLn2High) - n * kLn2Low;
  float q = 1.38146110e-3F;
  q = q * r + 8.36871004e-3F;
  q = q * r + 4.16683874e-2F;
  q = q * r + 1.66665207e-1F;
  q = q * r + 4.99999935e-1F;
  const float mantissa = 1.0F + (r + r * r * q);
  const std::uint32_t exponent = std::bit_cast<std::uint32_t>(shifted) << 23;
  const float result = std::bit_cast<float>(std::bit_cast<std::uint32_t>(mantissa) + exponent);
  return x < kLowest ? 0.0F : (x == x ? result : x);
}

/// e^x for x <= 0.
inline double exp_f64(double x) {
  constexpr double kLog2E = 1.4426950408889634;
  constexpr double kLn2High = 0x1.62e42feep-1;  // 32 significant bits: n * kLn2High is exact
  constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
  constexpr double kLowest = -700.0;
  constexpr double kRounder = 0x1.8p52;
  const double clamped = x < kLowest ? kLowest : x;
  const double shifted = clamped * kLog2E + kRounder;
  const double n = shifted - kRounder;
  const double r = (clamped - n * kLn2High) - n * kLn2Low;
  double q = 1.0;  // Σ r^k / k!, inside out
  for (int k = 11; k > 0; --k) {
    q = q * r * (1.0 / k) + 1.0;
  }
  const std::uint64_t exponent = std::bit_cast<std::uint64_t>(shifted) << 52;
  return std::bit_cast<double>(std::bit_cast<std::uint64_t>(q) + exponent);
}

/// log(1 + y) for 0 <= y <= 1, as 2 atanh(y / (2 + y)).
inline double log1p_f64(double y) {
  const double s = y / (2.0 + y);
  const double s2 = s * s;
  double q = 0.0;
  for (int k = 25; k > 0; k -= 2) {
    q = q * s2 + 1.0 / k;
  }
  return 2.0 * s * q;
}

inline constexpr float kGeluScale = 0.797884561F;  // sqrt(2 / pi)
inline constexpr float kGeluCubic = 0.044715F;

/// The logistic function of 2u, where tanh-GELU(x) = x (1 + tanh u) / 2 = x sigmoid(2u).
inline float gelu_gate(float x) {
  const float u = kGeluScale * (x + kGeluCubic * x * x * x);
  return 1.0F / (1.0F + exp_f32(-2.0F * u));
}

inline float gelu(float x) { return x * gelu_gate(x); }

inline float gelu_derivative(float x) {
  const float gate = gelu_gate(x);
  const float du = kGeluScale * (1.0F + 3.0F * kGeluCubic * x * x);
  return gate + 2.0F * x * gate * (1.0F - gate) * du;
}

struct SinCos {
  float sin, cos;
};

/// Sine and cosine of an angle in turns, as an unsigned 32-bit fraction. The wrap is exact.
inline SinCos sincos_turns(std::uint32_t turns) {
  constexpr float kRadians = 1.46291808e-9F;  // 2 pi / 2^32
  const std::uint32_t quarter = (turns + (1U << 29)) >> 30;
  const float x = static_cast<float>(static_cast<std::int32_t>(turns - (quarter << 30))) * kRadians;
  const float y = x * x;
  float s = 2.71735321e-6F;
  s = s * y - 1.98392031e-4F;
  s = s * y + 8.33332879e-3F;
  s = s * y - 1.66666666e-1F;
  s = s * y * x + x;
  float c = 2.43799293e-5F;
  c = c * y - 1.38866192e-3F;
  c = c * y + 4.16666167e-2F;
  c = c * y - 4.99999996e-1F;
  c = c * y + 1.0F;
  const bool swapped = (quarter & 1U) != 0;
  const float sine = swapped ? c : s;
  const float cosine = swapped ? s : c;
  const std::uint32_t sine_sign = (quarter & 2U) << 30;
  const std::uint32_t cosine_sign = ((quarter + 1U) & 2U) << 30;
  return {std::bit_cast<float>(std::bit_cast<std::uint32_t>(sine) ^ sine_sign),
          std::bit_cast<float>(std::bit_cast<std::uint32_t>(cosine) ^ cosine_sign)};
}

}  // namespace carope::cpu
