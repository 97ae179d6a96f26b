#pragma once

#include "ops/attention/attention_problem.cuh"

namespace carope::cuda {

/// The softmax of some keys, and its product with their values: what parts of a row are joined
/// from.
template <int N>
struct PartialSoftmax {
  float max = tiled::kNegativeInfinity;
  float sum = 0.0F;
  float out[N] = {};

  /// Makes room for scores up to `largest`; returns what to subtract from them before the
  /// exponential. Nothing seen yet must not lead to infinity minus infinity.
  __device__ float raise(float largest) {
    largest = fmaxf(largest, max);
    const float shift = largest == tiled::kNegativeInfinity ? 0.0F : largest;
    const float shrink = expf(max - shift);
    max = largest;
    sum *= shrink;
#pragma unroll
    for (float& o : out) {
      o *= shrink;
    }
    return shift;
  }

  /// Takes in what another has seen.
  __device__ void join(float other_max, float other_sum, const float (&other_out)[N]) {
    const float weight = expf(other_max - raise(other_max));
    sum += weight * other_sum;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      out[i] += weight * other_out[i];
    }
  }
};

}  // namespace carope::cuda
