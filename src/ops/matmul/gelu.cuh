#pragma once

namespace carope::cuda {

/// tanh-GELU and its derivative, as the CPU has them.
__device__ inline float gelu_tanh(float x) {
  constexpr float kSqrt2OverPi = 0.7978845608028654F;
  return tanhf(kSqrt2OverPi * (x + 0.044715F * x * x * x));
}
__device__ inline float gelu_of(float x) { return 0.5F * x * (1.0F + gelu_tanh(x)); }
__device__ inline float gelu_derivative(float x) {
  constexpr float kSqrt2OverPi = 0.7978845608028654F;
  const float t = gelu_tanh(x);
  return 0.5F * (1.0F + t) +
         0.5F * x * (1.0F - t * t) * kSqrt2OverPi * (1.0F + 3.0F * 0.044715F * x * x);
}

/// The same good to 1e-6 of themselves, in few instructions: gelu(x) = x s, where
/// s = (1 + tanh(u)) / 2 = 1 / (1 + exp(-2 u)).
class FastGelu {
 public:
  explicit __device__ FastGelu(float x) : x_(x), square_(x * x) {
    constexpr float kLinear = -2.302208198F;  // -2 log2(e) sqrt(2 / pi)
    constexpr float kCubic = -0.1029432396F;  // and times 0.044715
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * (kLinear + kCubic * square_)));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(share_) : "f"(1.0F + power));
  }

  __device__ float value() const { return x_ * share_; }
  __device__ float derivative() const {
    constexpr float kConstant = 1.5957691216F;                 // 2 sqrt(2 / pi)
    constexpr float kSquare = 0.2140644488F;                   // and times 3 * 0.044715
    const float slope = x_ * (kConstant + kSquare * square_);  // of 2 u, times x
    return share_ + share_ * (slope - slope * share_);
  }

 private:
  float x_, square_, share_;
};

}  // namespace carope::cuda
