#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "core/context.h"
#include "core/cuda_check.h"

// What CUDA kernels share. Activations are float or bf16; arithmetic is float.
namespace carope::cuda {

using bf16 = __nv_bfloat16;

inline constexpr unsigned kWarp = 32;
inline constexpr unsigned kAllLanes = 0xFFFFFFFF;

inline cudaStream_t stream_of(const Context& ctx) {
  return static_cast<cudaStream_t>(ctx.stream());
}

/// Throws if the launch just before was refused.
#define CUDA_CHECK_LAUNCH() CUDA_CHECK(cudaGetLastError())

template <class T>
T ceil_div(T a, T b) {
  return (a + b - 1) / b;
}

/// Elements as kernels see them, whatever the tensor's type.
template <class T>
T* data_of(const Tensor& tensor) {
  return static_cast<T*>(tensor.raw());
}

/// Whether 16-byte accesses may begin at each of these.
template <class... Pointers>
bool aligned16(const Pointers*... pointers) {
  return ((reinterpret_cast<std::uintptr_t>(pointers) % 16 == 0) && ...);
}

inline int multiprocessors(const Context& ctx) {
  int count = 0;
  CUDA_CHECK(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, ctx.device().index));
  return count;
}

/// Calls visit(T{}) with the element type of an activation: float or bf16.
template <class Visit>
void visit_float(DType dtype, const Visit& visit) {
  if (dtype == DType::kBF16) {
    visit(bf16{});
  } else {
    check<ShapeError>(dtype == DType::kF32, "no kernel takes activations of type {}",
                      to_string(dtype));
    visit(float{});
  }
}

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(bf16 x) { return __bfloat162float(x); }
template <class T>
__device__ T from_float(float x) {
  if constexpr (sizeof(T) == 2) {
    return __float2bfloat16_rn(x);
  } else {
    return x;
  }
}

/// N elements that are loaded and stored together.
template <class T, int N>
struct alignas(sizeof(T) * N) Vec {
  T at[N];

  __device__ static Vec load(const T* from) { return *reinterpret_cast<const Vec*>(from); }
  __device__ void store(T* to) const { *reinterpret_cast<Vec*>(to) = *this; }
};
/// As many elements as one 16-byte access moves.
template <class T>
inline constexpr int kLanesOf = 16 / sizeof(T);

/// The elements as floats. A pair of bf16 is taken apart as one word: a register for each half
/// would double what a row in registers costs.
template <class T, int N>
__device__ void unpack(const Vec<T, N>& from, float (&to)[N]) {
  if constexpr (sizeof(T) == 2 && N % 2 == 0) {
#pragma unroll
    for (int i = 0; i < N; i += 2) {
      std::uint32_t pair;
      memcpy(&pair, &from.at[i], sizeof(pair));
      to[i] = __uint_as_float(pair << 16);
      to[i + 1] = __uint_as_float(pair & 0xFFFF0000);
    }
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      to[i] = to_float(from.at[i]);
    }
  }
}
/// The inverse, with rounding.
template <class T, int N>
__device__ Vec<T, N> pack(const float (&from)[N]) {
  Vec<T, N> to;
  if constexpr (sizeof(T) == 2 && N % 2 == 0) {
#pragma unroll
    for (int i = 0; i < N; i += 2) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(from[i], from[i + 1]);
      memcpy(&to.at[i], &pair, sizeof(pair));
    }
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      to.at[i] = from_float<T>(from[i]);
    }
  }
  return to;
}

/// N elements just as they are loaded, in words where they fill some. The compiler takes elements
/// of two bytes apart right where they are loaded, and so waits for them there; these it leaves
/// alone.
template <class T, int N>
struct RawRow {
  using Word = std::conditional_t<(sizeof(T) * N >= 4), std::uint32_t, T>;
  static constexpr int kCount = sizeof(T) * N / sizeof(Word);
  Vec<Word, kCount> words;

  __device__ static RawRow load(const T* from) {
    return {Vec<Word, kCount>::load(reinterpret_cast<const Word*>(from))};
  }
};
template <class T, int N>
__device__ void unpack(const RawRow<T, N>& from, float (&to)[N]) {
  if constexpr (sizeof(T) == 2 && N % 2 == 0) {
#pragma unroll
    for (int i = 0; i < N; i += 2) {
      to[i] = __uint_as_float(from.words.at[i / 2] << 16);
      to[i + 1] = __uint_as_float(from.words.at[i / 2] & 0xFFFF0000);
    }
  } else if constexpr (sizeof(T) == 4) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      to[i] = __uint_as_float(from.words.at[i]);
    }
  } else {
    static_assert(N == 1);
    to[0] = to_float(from.words.at[0]);
  }
}

/// N floats, by 16-byte accesses where N is a multiple of 4.
template <int N>
__device__ void load_floats(const float* from, float (&to)[N]) {
  constexpr int kWidth = N % 4 == 0 ? 4 : 1;
#pragma unroll
  for (int i = 0; i < N; i += kWidth) {
    const auto loaded = Vec<float, kWidth>::load(from + i);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      to[i + k] = loaded.at[k];
    }
  }
}
template <int N>
__device__ void store_floats(const float (&from)[N], float* to) {
  constexpr int kWidth = N % 4 == 0 ? 4 : 1;
#pragma unroll
  for (int i = 0; i < N; i += kWidth) {
    Vec<float, kWidth> stored;
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      stored.at[k] = from[i + k];
    }
    stored.store(to + i);
  }
}

template <class T>
__device__ T warp_sum(T x) {
#pragma unroll
  for (unsigned step = kWarp / 2; step > 0; step /= 2) {
    x += __shfl_xor_sync(kAllLanes, x, step);
  }
  return x;
}

__device__ inline float warp_max(float x) {
#pragma unroll
  for (unsigned step = kWarp / 2; step > 0; step /= 2) {
    x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, step));
  }
  return x;
}

}  // namespace carope::cuda
