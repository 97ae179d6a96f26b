#pragma once

#include <cmath>
#include <initializer_list>

#include "ops/attention.h"
#include "ops/cuda/kernel.cuh"

// Attention as its kernels see it: plain pointers, strides and sizes.
namespace carope::cuda::tiled {

inline constexpr float kLog2E = 1.44269504088896340736F;
inline constexpr float kNegativeInfinity = -__builtin_huge_valf();

/// The vectors of all heads: row t of head h of batch row b starts at
/// data + b * batch_stride + t * row_stride + h * dim.
template <class T>
struct Rows {
  T* data = nullptr;
  std::int64_t batch_stride = 0;
  std::int64_t row_stride = 0;

  __device__ T* head(int b, int h, int dim) const {
    return data + b * batch_stride + static_cast<std::int64_t>(h) * dim;
  }
};

/// Query t of batch row b sees the keys document_start[b, t] .. offset(b) + t.
template <class T>
struct Problem {
  Rows<const T> q, k, v;
  Rows<T> out;
  float* logsumexp;                    // [B, H, T], or null
  const std::int32_t* document_start;  // [B, T], or null
  const std::int32_t* offsets;         // [B], or null
  const float* slopes;                 // [H], or null
  int batch, heads, dim;
  int queries;
  float scale;

  /// How many keys of a row come before its first query.
  __device__ int offset(int b) const { return offsets != nullptr ? offsets[b] : 0; }
  __device__ float slope(int h) const { return slopes != nullptr ? slopes[h] : 0.0F; }
  /// The first key that a query sees; rows past the last query see what that one sees.
  __device__ int first_key(int b, int query) const {
    if (document_start == nullptr) {
      return 0;
    }
    return document_start[static_cast<std::int64_t>(b) * queries + min(query, queries - 1)];
  }
};

/// What the backward pass has besides.
template <class T>
struct Gradients {
  Rows<const T> dout;
  Rows<T> dq, dk, dv;
};

/// Which tile of which head a block works on. Blocks are started in order of their number and those
/// of one head run together, sharing its keys and values in the cache.
struct BlockOf {
  int b, h, tile;

  __device__ BlockOf(int heads, int tiles) {
    const int row = blockIdx.x / tiles;
    b = row / heads;
    h = row % heads;
    tile = blockIdx.x % tiles;
  }

  /// Which rows of the block's tile a warp takes. Near the diagonal the first and the last warp
  /// have unequal work, and a warp's number decides which quarter of a multiprocessor it runs on:
  /// every other head counts backwards, so that blocks which run side by side load all quarters.
  __device__ int warp(int warps) const {
    const int number = threadIdx.x / kWarp;
    return h % 2 == 0 ? number : warps - 1 - number;
  }
};

/// The keys [first, last) that queries [query, query + count) see: some of them, or all of them.
struct KeySpan {
  int first, last;

  template <class T>
  __device__ static KeySpan of_any(const Problem<T>& p, int b, int query, int count) {
    return {p.first_key(b, query), p.offset(b) + query + count};
  }
  template <class T>
  __device__ static KeySpan of_all(const Problem<T>& p, int b, int query, int count) {
    return {p.first_key(b, query + count - 1), p.offset(b) + query + 1};
  }
  __device__ bool meets(int key, int count) const { return key < last && key + count > first; }
  __device__ bool holds(int key, int count) const { return key >= first && key + count <= last; }
};

/// q, k or v (which = 0, 1, 2) of a [B, T, 3C] tensor.
template <class T>
Rows<T> part_of(const Sequence& seq, const Tensor& qkv, int which) {
  const std::int64_t width = qkv.cols();
  return {static_cast<T*>(qkv.raw()) + which * (width / 3), seq.length * width, width};
}

/// The heads of a tensor of `length` rows a batch row.
template <class T>
Rows<T> rows_of(const Tensor& tensor, std::int64_t length) {
  return {static_cast<T*>(tensor.raw()), length * tensor.cols(), tensor.cols()};
}

template <class T>
Problem<T> problem_of(const Attention& attention, const Sequence& seq, const Tensor& qkv,
                      const Tensor& out) {
  const std::int64_t dim = qkv.cols() / 3 / attention.heads;
  return {.q = part_of<const T>(seq, qkv, 0),
          .k = part_of<const T>(seq, qkv, 1),
          .v = part_of<const T>(seq, qkv, 2),
          .out = rows_of<T>(out, seq.length),
          .logsumexp = nullptr,
          .document_start = seq.document_start ? seq.document_start.data<std::int32_t>() : nullptr,
          .offsets = data_of<std::int32_t>(seq.offsets),
          .slopes = attention.slopes ? attention.slopes.f32() : nullptr,
          .batch = static_cast<int>(seq.batch),
          .heads = static_cast<int>(attention.heads),
          .dim = static_cast<int>(dim),
          .queries = static_cast<int>(seq.length),
          .scale = attention.score_scale / std::sqrt(static_cast<float>(dim))};
}

template <class T>
Problem<T> problem_of(const Attention& attention, const Sequence& seq,
                      const AttentionBackward& args) {
  Problem<T> problem = problem_of<T>(attention, seq, args.qkv, args.out);
  problem.logsumexp = args.logsumexp.f32();
  return problem;
}
template <class T>
Gradients<T> gradients_of(const Sequence& seq, const AttentionBackward& args) {
  return {.dout = rows_of<const T>(args.dout, seq.length),
          .dq = part_of<T>(seq, args.dqkv, 0),
          .dk = part_of<T>(seq, args.dqkv, 1),
          .dv = part_of<T>(seq, args.dqkv, 2)};
}

/// Whether the tensor cores' kernels take it: a head dimension they are compiled for, and rows that
/// can be copied 16 bytes at a time (all strides are multiples of the head dimension).
inline bool suits_tensor_cores(int dim, std::initializer_list<const void*> pointers) {
  bool suits = dim == 32 || dim == 64 || dim == 128;
  for (const void* pointer : pointers) {
    suits = suits && reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0;
  }
  return suits;
}

inline bool suits_tensor_cores(const Problem<bf16>& p, const Gradients<bf16>& g) {
  const std::initializer_list<const void*> pointers{p.q.data,    p.k.data,  p.v.data,  p.out.data,
                                                    g.dout.data, g.dq.data, g.dk.data, g.dv.data};
  return suits_tensor_cores(p.dim, pointers);
}

/// Launches one block for each tile of each head, with as much dynamic shared memory as it wants.
template <class... Arguments>
void launch(void (*kernel)(Arguments...), std::int64_t blocks, int threads, std::size_t shared,
            cudaStream_t stream, const Arguments&... arguments) {
  if (blocks == 0) {
    return;
  }
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(shared)));
  kernel<<<static_cast<unsigned>(blocks), threads, shared, stream>>>(arguments...);
  CUDA_CHECK_LAUNCH();
}

/// Attention of any problem, by the fastest kernel that takes it.
void forward(cudaStream_t stream, const Problem<bf16>& problem);
void forward(cudaStream_t stream, const Problem<float>& problem);

/// The same in plain float arithmetic, for every head dimension.
template <class T>
void plain_forward(cudaStream_t stream, const Problem<T>& problem);
template <class T>
void plain_backward(Context& ctx, const Problem<T>& problem, const Gradients<T>& gradients);

/// The same on Hopper for short sequences of one document.
bool hopper_serves_backward(const Problem<bf16>& problem, const Gradients<bf16>& gradients);
void hopper_backward(Context& ctx, const Problem<bf16>& problem, const Gradients<bf16>& gradients);

}  // namespace carope::cuda::tiled
