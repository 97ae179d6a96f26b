#include <cmath>

#include "core/parallel.h"
#include "ops/adamw.h"

namespace carope::cpu {
namespace {

constexpr std::int64_t kElements = 16384;  // elements a task

}  // namespace

void adamw(Context& ctx, const Adamw& adamw, const Tensor& value, const Tensor& gradient,
           const Tensor& first_moment, const Tensor& second_moment) {
  const auto steps = static_cast<double>(adamw.step);
  const auto step_size = static_cast<float>(
      adamw.learning_rate / (1.0 - std::pow(static_cast<double>(adamw.beta1), steps)));
  const auto deviation_scale =
      static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(static_cast<double>(adamw.beta2), steps)));
  const float keep = 1.0F - adamw.learning_rate * adamw.decay;
  float* w = value.f32();
  const float* g = gradient.f32();
  float* m = first_moment.f32();
  float* v = second_moment.f32();
  parallel_blocks(ctx, value.size(), kElements, [&](std::int64_t begin, std::int64_t end) {
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) {
      const float scaled = g[i] * adamw.gradient_scale;
      m[i] = adamw.beta1 * m[i] + (1.0F - adamw.beta1) * scaled;
      v[i] = adamw.beta2 * v[i] + (1.0F - adamw.beta2) * scaled * scaled;
      w[i] = keep * w[i] - step_size * m[i] / (std::sqrt(v[i]) * deviation_scale + adamw.epsilon);
    }
  });
}

double sum_of_squares(Context& ctx, const Tensor& x) {
  const std::int64_t blocks = (x.size() + kElements - 1) / kElements;
  const Tensor sums = ctx.scratch({{blocks}, DType::kF64});
  parallel_blocks(ctx, x.size(), kElements, [&](std::int64_t begin, std::int64_t end) {
    double sum = 0.0;
#pragma omp simd reduction(+ : sum)
    for (std::int64_t i = begin; i < end; ++i) {
      sum += static_cast<double>(x.f32()[i]) * x.f32()[i];
    }
    sums.data<double>()[begin / kElements] = sum;
  });
  double total = 0.0;
  for (std::int64_t block = 0; block < blocks; ++block) {
    total += sums.data<double>()[block];
  }
  return total;
}

}  // namespace carope::cpu
