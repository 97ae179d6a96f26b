#include "ops/adamw.h"

#include <algorithm>
#include <cmath>

#include "core/parallel.h"

namespace carope::cpu {
namespace {

constexpr std::int64_t kElements = 16384;  // elements a task

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

/// What an update needs besides the slot.
struct Step {
  float size;             // learning rate over the first moment's bias
  float deviation_scale;  // undoes the second moment's bias
  float gradient_scale;   // clipping
};

void update(Context& ctx, const Adamw& adamw, const Step& step, const AdamwSlot& slot) {
  const float keep = 1.0F - adamw.learning_rate * slot.decay;
  float* w = slot.value.f32();
  const float* g = slot.gradient.f32();
  float* m = slot.first_moment.f32();
  float* v = slot.second_moment.f32();
  Bf16* rounded = slot.rounded ? slot.rounded.data<Bf16>() : nullptr;
  parallel_blocks(ctx, slot.value.size(), kElements, [&](std::int64_t begin, std::int64_t end) {
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) {
      const float scaled = g[i] * step.gradient_scale;
      m[i] = adamw.beta1 * m[i] + (1.0F - adamw.beta1) * scaled;
      v[i] = adamw.beta2 * v[i] + (1.0F - adamw.beta2) * scaled * scaled;
      w[i] =
          keep * w[i] - step.size * m[i] / (std::sqrt(v[i]) * step.deviation_scale + adamw.epsilon);
    }
    if (rounded != nullptr) {
      std::transform(w + begin, w + end, rounded + begin, to_bf16);
    }
  });
}

}  // namespace

void gradient_squares(Context& ctx, std::span<const AdamwSlot> slots, const Tensor& squares) {
  double sum = 0.0;
  for (const AdamwSlot& slot : slots) {
    sum += sum_of_squares(ctx, slot.gradient);
  }
  squares.data<double>()[0] = sum;
}

void adamw(Context& ctx, const Adamw& adamw, std::span<const AdamwSlot> slots,
           const Tensor& squares) {
  const double length = std::sqrt(squares.data<double>()[0]);
  if (!std::isfinite(length)) {
    return;
  }
  const auto steps = static_cast<double>(adamw.step);
  const double bias1 = 1.0 - std::pow(static_cast<double>(adamw.beta1), steps);
  const double bias2 = 1.0 - std::pow(static_cast<double>(adamw.beta2), steps);
  const bool clipped = adamw.clip > 0.0 && length > adamw.clip;
  const Step step{.size = static_cast<float>(adamw.learning_rate / bias1),
                  .deviation_scale = static_cast<float>(1.0 / std::sqrt(bias2)),
                  .gradient_scale = static_cast<float>(clipped ? adamw.clip / length : 1.0)};
  for (const AdamwSlot& slot : slots) {
    update(ctx, adamw, step, slot);
  }
}

}  // namespace carope::cpu
