#include "ops/block_weights.h"

#include <algorithm>

#include "core/parallel.h"
#include "ops/simd_cpu.h"

namespace carope::cpu {

void block_weights(Context& ctx, const Tensor& logits, double temperature, const Tensor& weights) {
  const float* values = logits.f32();
  double* results = weights.data<double>();
  parallel_blocks(ctx, logits.size(), kWeightBlock, [&](std::int64_t begin, std::int64_t end) {
    float highest = values[begin];
    float zero = 0.0F;  // but for x - x of what is not finite
    for (std::int64_t i = begin; i < end; ++i) {
      highest = std::max(highest, values[i]);
      zero += values[i] - values[i];
    }
    double sum = 0.0;
#pragma omp simd reduction(+ : sum)
    for (std::int64_t i = begin; i < end; ++i) {
      sum += exp_f64((static_cast<double>(values[i]) - highest) / temperature);
    }
    results[begin / kWeightBlock * 2] = highest + zero;
    results[begin / kWeightBlock * 2 + 1] = sum;
  });
}

}  // namespace carope::cpu
