#include <cmath>

#include "core/parallel.h"
#include "ops/cross_entropy.h"
#include "ops/simd_cpu.h"

namespace carope::cpu {
namespace {

constexpr std::int64_t kRows = 8;  // rows a task

float largest(const float* row, std::int64_t classes) {
  float max = row[0];
#pragma omp simd reduction(max : max)
  for (std::int64_t v = 1; v < classes; ++v) {
    max = std::max(max, row[v]);
  }
  return max;
}

}  // namespace

void cross_entropy(Context& ctx, const Tensor& logits, const Tensor& targets,
                   const Tensor& losses) {
  const std::int64_t classes = logits.cols();
  parallel_blocks(ctx, logits.rows(), kRows, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) {
      const std::int32_t target = targets.data<std::int32_t>()[n];
      const float* row = logits.f32() + n * classes;
      const float max = largest(row, classes);
      float sum = 0.0F;
#pragma omp simd reduction(+ : sum)
      for (std::int64_t v = 0; v < classes; ++v) {
        sum += exp_f32(row[v] - max);
      }
      losses.f32()[n] = target < 0 ? 0.0F : max + std::log(sum) - row[target];
    }
  });
}

void cross_entropy_in_place(Context& ctx, const Tensor& logits, const Tensor& targets,
                            const Tensor& losses, float scale) {
  const std::int64_t classes = logits.cols();
  parallel_blocks(ctx, logits.rows(), kRows, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) {
      const std::int32_t target = targets.data<std::int32_t>()[n];
      float* row = logits.f32() + n * classes;
      if (target < 0) {
        std::fill_n(row, classes, 0.0F);
        losses.f32()[n] = 0.0F;
        continue;
      }
      const float max = largest(row, classes);
      const float target_logit = row[target];
      float sum = 0.0F;
#pragma omp simd reduction(+ : sum)
      for (std::int64_t v = 0; v < classes; ++v) {
        row[v] = exp_f32(row[v] - max);
        sum += row[v];
      }
      const float factor = scale / sum;
#pragma omp simd
      for (std::int64_t v = 0; v < classes; ++v) {
        row[v] *= factor;
      }
      row[target] -= scale;
      losses.f32()[n] = max + std::log(sum) - target_logit;
    }
  });
}

}  // namespace carope::cpu
