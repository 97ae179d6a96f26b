#include "ops/cross_entropy.h"

#include <cfloat>

#include "ops/cuda/reduce.cuh"

namespace carope::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kUnroll = 4;             // loads in flight a thread
constexpr std::size_t kReserve = 256;  // bytes of shared memory for reductions

/// e^x for x <= 0; what would not be a normal number is 0.
__device__ float exp_below(float x) {
  constexpr float kLog2E = 1.44269504F;
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x * kLog2E));
  return result;
}

/// Σ e^(x - max) and max of the values seen so far. It begins above -infinity, from which nothing
/// can be subtracted.
struct Exponentials {
  float max = -FLT_MAX;
  float sum = 0.0F;

  __device__ void raise(float to) {
    sum *= exp_below(max - to);
    max = to;
  }
};

/// One block a row. With kKeep the row stays in shared memory until its gradient is written, so
/// that global memory is read once; each thread keeps and later reads its own part alone.
template <class T, int kWidth, bool kGradient, bool kKeep>
__global__ void __launch_bounds__(kThreads, 2)
    row_loss(T* logits, const std::int32_t* targets, float* losses, int classes, float scale) {
  using Part = Vec<T, kWidth>;
  extern __shared__ uint4 shared[];
  Part* kept = reinterpret_cast<Part*>(shared);
  const std::int64_t n = blockIdx.x;
  T* row = logits + n * classes;
  const int parts = classes / kWidth;
  const std::int32_t target = targets[n];
  if (target < 0) {
    if constexpr (kGradient) {
      for (int i = threadIdx.x; i < parts; i += kThreads) {
        Part{}.store(row + i * kWidth);
      }
    }
    if (threadIdx.x == 0) {
      losses[n] = 0.0F;
    }
    return;
  }
  const float target_logit = to_float(row[target]);

  Exponentials seen;
  for (int first = threadIdx.x; first < parts; first += kUnroll * kThreads) {
    Part loaded[kUnroll];
    float max = seen.max;
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (const int i = first + u * kThreads; i < parts) {
        loaded[u] = Part::load(row + i * kWidth);
      }
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (const int i = first + u * kThreads; i < parts) {
        if constexpr (kKeep) {
          kept[i] = loaded[u];
        }
        float values[kWidth];
        unpack(loaded[u], values);
#pragma unroll
        for (int k = 0; k < kWidth; ++k) {
          max = fmaxf(max, values[k]);
        }
      }
    }
    seen.raise(max);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (first + u * kThreads < parts) {
        float values[kWidth];
        unpack(loaded[u], values);
#pragma unroll
        for (int k = 0; k < kWidth; ++k) {
          seen.sum += exp_below(values[k] - max);
        }
      }
    }
  }
  seen.raise(block_max<kThreads>(seen.max));
  const float sum = block_sum<kThreads>(seen.sum);
  if (threadIdx.x == 0) {
    losses[n] = seen.max + logf(sum) - target_logit;
  }

  if constexpr (kGradient) {
    const float factor = scale / sum;
#pragma unroll kUnroll
    for (int i = threadIdx.x; i < parts; i += kThreads) {
      float values[kWidth];
      unpack(kKeep ? kept[i] : Part::load(row + i * kWidth), values);
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
        values[k] = factor * exp_below(values[k] - seen.max);
      }
      pack<T>(values).store(row + i * kWidth);
    }
    if (threadIdx.x == target / kWidth % kThreads) {  // the thread that has just written it
      row[target] = from_float<T>(factor * exp_below(target_logit - seen.max) - scale);
    }
  }
}

struct Rows {
  Tensor logits, targets, losses;
  float scale;
};

template <class T, int kWidth, bool kGradient, bool kKeep>
void launch(Context& ctx, const Rows& rows) {
  const auto kernel = row_loss<T, kWidth, kGradient, kKeep>;
  const auto classes = static_cast<int>(rows.logits.cols());
  const int kept = kKeep ? classes * static_cast<int>(sizeof(T)) : 0;
  if constexpr (kKeep) {
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kept));
    // Two rows of bf16 logits a multiprocessor: one is read while the other is written.
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                    cudaSharedmemCarveoutMaxShared));
  }
  kernel<<<rows.logits.rows(), kThreads, kept, stream_of(ctx)>>>(
      data_of<T>(rows.logits), rows.targets.data<std::int32_t>(), rows.losses.f32(), classes,
      rows.scale);
  CUDA_CHECK_LAUNCH();
}

template <class T>
bool is_wide(const Tensor& logits) {
  return logits.cols() % kLanesOf<T> == 0 && aligned16(logits.raw());
}

bool fits_shared(const Context& ctx, std::size_t bytes) {
  int limit = 0;
  CUDA_CHECK(
      cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, ctx.device().index));
  return bytes + kReserve <= static_cast<std::size_t>(limit);
}

}  // namespace

void cross_entropy(Context& ctx, const Tensor& logits, const Tensor& targets,
                   const Tensor& losses) {
  visit_float(logits.dtype(), [&](auto type) {
    using T = decltype(type);
    const Rows rows{logits, targets, losses, 0.0F};
    if (is_wide<T>(logits)) {
      launch<T, kLanesOf<T>, false, false>(ctx, rows);
    } else {
      launch<T, 1, false, false>(ctx, rows);
    }
  });
}

void cross_entropy_in_place(Context& ctx, const Tensor& logits, const Tensor& targets,
                            const Tensor& losses, float scale) {
  visit_float(logits.dtype(), [&](auto type) {
    using T = decltype(type);
    const Rows rows{logits, targets, losses, scale};
    if (!is_wide<T>(logits)) {
      launch<T, 1, true, false>(ctx, rows);
    } else if (fits_shared(ctx, static_cast<std::size_t>(logits.cols()) * sizeof(T))) {
      launch<T, kLanesOf<T>, true, true>(ctx, rows);
    } else {
      launch<T, kLanesOf<T>, true, false>(ctx, rows);
    }
  });
}

}  // namespace carope::cuda
