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

}  // namespace carope::cuda
