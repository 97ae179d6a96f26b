#include "ops/adamw.h"

#include <cmath>

#include "ops/cuda/reduce.cuh"

namespace carope::cuda {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kChunk = 8192;                // elements a block
constexpr std::size_t kParameterBytes = 4096 - 128;  // of a kernel, less what else it takes

/// As many slots as one launch takes in its parameters. Chunks are numbered through all of them.
template <class Slot>
struct Batch {
  static constexpr int kSlots = (kParameterBytes - 2 * sizeof(int)) / sizeof(Slot);
  Slot slots[kSlots];
  int count = 0;
  int chunks = 0;

  /// The last slot that begins at or before a chunk.
  __device__ const Slot& of_chunk(int chunk) const {
    int low = 0;
    int high = count;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (slots[middle].first_chunk <= chunk ? low : high) = middle;
    }
    return slots[low];
  }
};

/// Calls launch(batch) until every slot, as make(slot) sees it, has been in one.
template <class Make, class Launch>
void in_batches(std::span<const AdamwSlot> slots, const Make& make, const Launch& launch) {
  using Slot = decltype(make(slots.front()));
  Batch<Slot> batch{};
  for (std::size_t i = 0; i < slots.size(); ++i) {
    Slot slot = make(slots[i]);
    slot.first_chunk = batch.chunks;
    batch.chunks += static_cast<int>(ceil_div(slot.size, kChunk));
    batch.slots[batch.count++] = slot;
    if (batch.count == Batch<Slot>::kSlots || i + 1 == slots.size()) {
      if (batch.chunks > 0) {
        launch(batch);
      }
      batch = {};
    }
  }
}

/// What a block works on.
struct Range {
  std::int64_t begin, end;
};

template <class Slot>
__device__ Range chunk_of(const Slot& slot, int chunk) {
  const std::int64_t begin = (chunk - slot.first_chunk) * kChunk;
  return {begin, min(slot.size, begin + kChunk)};
}

struct Gradient {
  const float* values;
  std::int64_t size;
  bool wide;  // 16-byte accesses are allowed
  int first_chunk = 0;
};

template <int kWidth>
__device__ double squares(const float* values, Range range) {
  double sum = 0.0;
#pragma unroll 4
  for (std::int64_t i = range.begin + threadIdx.x * kWidth; i < range.end; i += kThreads * kWidth) {
    const auto loaded = Vec<float, kWidth>::load(values + i);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      sum += static_cast<double>(loaded.at[k]) * loaded.at[k];
    }
  }
  return sum;
}

__global__ void __launch_bounds__(kThreads)
    sum_squares(const __grid_constant__ Batch<Gradient> batch, double* shares) {
  const Gradient slot = batch.of_chunk(blockIdx.x);
  const Range range = chunk_of(slot, blockIdx.x);
  const double sum = block_sum<kThreads>(slot.wide ? squares<4>(slot.values, range)
                                                   : squares<1>(slot.values, range));
  if (threadIdx.x == 0) {
    shares[blockIdx.x] = sum;
  }
}

__global__ void __launch_bounds__(1024)
    sum_shares(const double* shares, std::int64_t count, double* total) {
  double sum = 0.0;
  for (std::int64_t i = threadIdx.x; i < count; i += 1024) {
    sum += shares[i];
  }
  sum = block_sum<1024>(sum);
  if (threadIdx.x == 0) {
    *total = sum;
  }
}

/// What an update needs besides the slot.
struct Step {
  float beta1, beta2, epsilon;
  float size;             // learning rate over the first moment's bias
  float deviation_scale;  // undoes the second moment's bias
  double clip;
  const double* squares;
};

struct Parameter {
  float* value;
  const float* gradient;
  float* first_moment;
  float* second_moment;
  bf16* rounded;  // or null
  std::int64_t size;
  float keep;  // what decay leaves of the value
  bool wide;   // 16-byte accesses are allowed
  int first_chunk = 0;
};

template <int kWidth>
__device__ void update(const Parameter& slot, const Step& step, float gradient_scale, Range range) {
  using Floats = Vec<float, kWidth>;
  for (std::int64_t i = range.begin + threadIdx.x * kWidth; i < range.end; i += kThreads * kWidth) {
    const Floats g = Floats::load(slot.gradient + i);
    Floats w = Floats::load(slot.value + i);
    Floats m = Floats::load(slot.first_moment + i);
    Floats v = Floats::load(slot.second_moment + i);
    Vec<bf16, kWidth> rounded;
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      const float scaled = g.at[k] * gradient_scale;
      m.at[k] = step.beta1 * m.at[k] + (1.0F - step.beta1) * scaled;
      v.at[k] = step.beta2 * v.at[k] + (1.0F - step.beta2) * scaled * scaled;
      w.at[k] = slot.keep * w.at[k] -
                step.size * m.at[k] / (sqrtf(v.at[k]) * step.deviation_scale + step.epsilon);
      rounded.at[k] = from_float<bf16>(w.at[k]);
    }
    w.store(slot.value + i);
    m.store(slot.first_moment + i);
    v.store(slot.second_moment + i);
    if (slot.rounded != nullptr) {
      rounded.store(slot.rounded + i);
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    update_parameters(const __grid_constant__ Batch<Parameter> batch,
                      const __grid_constant__ Step step) {
  const double norm = sqrt(*step.squares);
  if (!isfinite(norm)) {
    return;
  }
  const bool clipped = step.clip > 0.0 && norm > step.clip;
  const auto gradient_scale = clipped ? static_cast<float>(step.clip / norm) : 1.0F;
  // A copy: to the compiler, a store could change what a reference refers to.
  const Parameter slot = batch.of_chunk(blockIdx.x);
  const Range range = chunk_of(slot, blockIdx.x);
  if (slot.wide) {
    update<4>(slot, step, gradient_scale, range);
  } else {
    update<1>(slot, step, gradient_scale, range);
  }
}

}  // namespace

void gradient_squares(Context& ctx, std::span<const AdamwSlot> slots, const Tensor& squares) {
  std::int64_t chunks = 0;
  for (const AdamwSlot& slot : slots) {
    chunks += ceil_div(slot.gradient.size(), kChunk);
  }
  auto* const shares = ctx.scratch({{chunks}, DType::kF64}).data<double>();
  const auto make = [](const AdamwSlot& slot) {
    const float* values = slot.gradient.f32();
    const std::int64_t size = slot.gradient.size();
    return Gradient{.values = values, .size = size, .wide = size % 4 == 0 && aligned16(values)};
  };
  std::int64_t done = 0;
  in_batches(slots, make, [&](const Batch<Gradient>& batch) {
    sum_squares<<<batch.chunks, kThreads, 0, stream_of(ctx)>>>(batch, shares + done);
    CUDA_CHECK_LAUNCH();
    done += batch.chunks;
  });
  sum_shares<<<1, 1024, 0, stream_of(ctx)>>>(shares, chunks, squares.data<double>());
  CUDA_CHECK_LAUNCH();
}

void adamw(Context& ctx, const Adamw& adamw, std::span<const AdamwSlot> slots,
           const Tensor& squares) {
  const auto steps = static_cast<double>(adamw.step);
  const double bias1 = 1.0 - std::pow(static_cast<double>(adamw.beta1), steps);
  const double bias2 = 1.0 - std::pow(static_cast<double>(adamw.beta2), steps);
  const Step step{.beta1 = adamw.beta1,
                  .beta2 = adamw.beta2,
                  .epsilon = adamw.epsilon,
                  .size = static_cast<float>(adamw.learning_rate / bias1),
                  .deviation_scale = static_cast<float>(1.0 / std::sqrt(bias2)),
                  .clip = adamw.clip,
                  .squares = squares.data<double>()};
  const auto make = [&](const AdamwSlot& slot) {
    const bool aligned = aligned16(slot.value.raw(), slot.gradient.raw(), slot.first_moment.raw(),
                                   slot.second_moment.raw(), slot.rounded.raw());
    return Parameter{
        .value = slot.value.f32(),
        .gradient = slot.gradient.f32(),
        .first_moment = slot.first_moment.f32(),
        .second_moment = slot.second_moment.f32(),
        .rounded = reinterpret_cast<bf16*>(slot.rounded ? slot.rounded.data<Bf16>() : nullptr),
        .size = slot.value.size(),
        .keep = 1.0F - adamw.learning_rate * slot.decay,
        .wide = aligned && slot.value.size() % 4 == 0};
  };
  in_batches(slots, make, [&](const Batch<Parameter>& batch) {
    update_parameters<<<batch.chunks, kThreads, 0, stream_of(ctx)>>>(batch, step);
    CUDA_CHECK_LAUNCH();
  });
}

}  // namespace carope::cuda
