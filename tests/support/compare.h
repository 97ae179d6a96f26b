#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <span>

#include "core/tensor.h"

namespace carope::test {

/// The relative errors that results of a type may have. They serve every operation and shape alike:
/// an error is a norm over a whole tensor, relative to the norm of the reference.
///
/// Measured with and without vector instructions: over the sweep of ops_test, fp32 gives at most
/// 7.5e-7 forward (layer norm of rows whose mean is larger than their deviation) and 1.6e-6 in a
/// gradient (attention with a sharp softmax, whose scores are rounded before they are
/// exponentiated); most operations stay below 5e-7. In model_gradient_test it is at most 1.3e-6.
/// The rest is room for other orders of summation. A wrong sign or index gives 1e-2 or more.
///
/// Storing a number in bf16 moves it by at most 2^-8, or 3.9e-3, of itself, and a tensor by 1.5e-3
/// of its norm; where an activation in between is rounded too, by 2.4e-3. What rounding alone gives
/// over the sweep of cuda_ops_test is at most 2.5e-3 forward and 7.1e-3 in a gradient: there in the
/// sum with random signs, one draw from a distribution as wide as the typical error of 2e-3. Cases
/// that magnify roundings say so by their condition.
struct Tolerance {
  double forward;
  double gradient;
  double loss;     // absolute, of a mean loss of a few nats
  double trained;  // of parameters after ten steps of AdamW: where a gradient is zero but for
                   // rounding (a key's bias without rotation), the division by its own magnitude
                   // makes noise of it
};

inline Tolerance tolerance(DType dtype) {
  if (dtype == DType::kBF16) {
    return {.forward = 4e-3, .gradient = 1e-2, .loss = 1e-2, .trained = 1e-2};
  }
  check<Error>(dtype == DType::kF32, "there is no tolerance for {}", to_string(dtype));
  return {.forward = 2e-6, .gradient = 5e-6, .loss = 2e-6, .trained = 3e-4};
}

/// What an operation on bf16 activations computes in fp32 without another rounding on the way: a
/// parameter's gradient, a statistic, a loss. More than for fp32, as tensor cores cut off what
/// others round when they add; far less than the 1e-3 that a sum kept in bf16 would give.
inline Tolerance unrounded_tolerance() {
  return {.forward = 2e-5, .gradient = 2e-5, .loss = 2e-5, .trained = 3e-4};
}

/// How far a model on a GPU may be from the CPU engine. Both round in fp32. In bf16 the bounds are
/// two to three times what moving every weight of these models by one rounding moves: 7e-3 in a
/// gradient, and up to 5e-2 in a gate's, where the phases' gradients cancel.
struct ModelTolerance {
  double logits;
  double gradient;
  double gate_gradient;
  double loss;     // absolute
  double trained;  // absolute, of the loss after some steps
};

inline ModelTolerance model_tolerance(DType compute) {
  return compute == DType::kF32 ? ModelTolerance{.logits = 5e-6,
                                                 .gradient = 1e-5,
                                                 .gate_gradient = 1e-5,
                                                 .loss = 5e-6,
                                                 .trained = 1e-4}
                                : ModelTolerance{.logits = 2e-2,
                                                 .gradient = 2e-2,
                                                 .gate_gradient = 1e-1,
                                                 .loss = 2e-3,
                                                 .trained = 2e-2};
}

inline std::span<const float> values_of(const Tensor& tensor) {
  return {tensor.f32(), static_cast<std::size_t>(tensor.size())};
}

/// ‖a - b‖ / ‖b‖ in fp64, where b is the reference. Where b is zero, so must a be: then the result
/// is ‖a‖. A NaN in `a` makes it NaN, which is below no tolerance.
template <class A, class B>
double relative_error(std::span<const A> a, std::span<const B> b) {
  check<ShapeError>(a.size() == b.size(), "{} values cannot be compared with {}", a.size(),
                    b.size());
  double difference = 0.0;
  double norm = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const auto expected = static_cast<double>(b[i]);
    const double error = static_cast<double>(a[i]) - expected;
    difference += error * error;
    norm += expected * expected;
  }
  return norm > 0.0 ? std::sqrt(difference / norm) : std::sqrt(difference);
}

/// Whether two results are the same to the last bit: a NaN equals itself, and 0 is not -0.
inline bool same_bits(std::span<const float> a, std::span<const float> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](float x, float y) {
    return std::bit_cast<std::uint32_t>(x) == std::bit_cast<std::uint32_t>(y);
  });
}

}  // namespace carope::test
