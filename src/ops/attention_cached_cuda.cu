#include "ops/attention_problem.cuh"

namespace carope::cuda {
namespace {

using namespace tiled;

constexpr int kThreads = 128;
constexpr int kMostDecoded = 4;      // new tokens that are few enough to be decoded one by one
constexpr int kBlocksWanted = 1024;  // keys are split until there are so many blocks
constexpr int kKeysAtOnce = 4;       // that a thread has on the way

/// Copies k and v of the new tokens into the cache, N elements a thread.
template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    append(const T* qkv, T* keys, T* values, int batch, int length, int width,
           std::int64_t capacity, int offset) {
  const std::int64_t pieces = width / N;
  const std::int64_t count = static_cast<std::int64_t>(batch) * length * pieces;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count;
       i += static_cast<std::int64_t>(gridDim.x) * kThreads) {
    const std::int64_t token = i / pieces;
    const std::int64_t column = i % pieces * N;
    const std::int64_t slot =
        (token / length * capacity + offset + token % length) * width + column;
    const T* row = qkv + token * 3 * width + column;
    const auto k = Vec<T, N>::load(row + width);
    const auto v = Vec<T, N>::load(row + 2 * width);
    k.store(keys + slot);
    v.store(values + slot);
  }
}

/// The softmax of some keys, and its product with their values: what parts of a row are joined
/// from.
template <int N>
struct PartialSoftmax {
  float max = kNegativeInfinity;
  float sum = 0.0F;
  float out[N] = {};

  /// Makes room for scores up to `largest`; returns what to subtract from them before the
  /// exponential. Nothing seen yet must not lead to infinity minus infinity.
  __device__ float raise(float largest) {
    largest = fmaxf(largest, max);
    const float shift = largest == kNegativeInfinity ? 0.0F : largest;
    const float shrink = expf(max - shift);
    max = largest;
    sum *= shrink;
#pragma unroll
    for (float& o : out) {
      o *= shrink;
    }
    return shift;
  }
};

/// One part of the keys of one query and head. kDim / N lanes share a key, N elements each; every
/// such group has a softmax of its own until the end. Parts [row, part, 2 + kDim] hold max, sum and
/// the weighted sum of values.
template <class T, int kDim>
__global__ void __launch_bounds__(kThreads)
    attend_part(const Problem<T> p, int part_count, int keys_a_part, float* parts) {
  constexpr int N = kLanesOf<T>;
  constexpr int kLanes = kDim / N;
  constexpr int kGroups = kThreads / kLanes;
  static_assert(kLanes <= static_cast<int>(kWarp));
  __shared__ float group_max[kGroups];
  __shared__ float group_sum[kGroups];
  __shared__ float group_out[kGroups][kDim];

  const int row = blockIdx.x / part_count;  // (b * T + t) * H + h
  const int part = blockIdx.x % part_count;
  const int h = row % p.heads;
  const int t = row / p.heads % p.queries;
  const int b = row / p.heads / p.queries;
  const int group = threadIdx.x / kLanes;
  const int column = threadIdx.x % kLanes * N;
  const int position = p.offset + t;
  const int first = part * keys_a_part;
  const int last = min(first + keys_a_part, position + 1);
  const float slope = p.slope(h);
  const T* k = p.k.head(b, h, kDim) + column;
  const T* v = p.v.head(b, h, kDim) + column;
  const auto raw_q = Vec<T, N>::load(p.q.head(b, h, kDim) + t * p.q.row_stride + column);
  float q[N];
#pragma unroll
  for (int i = 0; i < N; ++i) {
    q[i] = to_float(raw_q.at[i]) * p.scale;
  }

  PartialSoftmax<N> softmax;
  for (int start = first; start < last; start += kGroups * kKeysAtOnce) {
    Vec<T, N> keys[kKeysAtOnce], values[kKeysAtOnce];
#pragma unroll
    for (int j = 0; j < kKeysAtOnce; ++j) {
      // Past the end the last key is read again, and its score ignored below.
      const std::int64_t key = min(start + j * kGroups + group, last - 1);
      keys[j] = Vec<T, N>::load(k + key * p.k.row_stride);
      values[j] = Vec<T, N>::load(v + key * p.v.row_stride);
    }
    float scores[kKeysAtOnce];
    float largest = kNegativeInfinity;
#pragma unroll
    for (int j = 0; j < kKeysAtOnce; ++j) {
      const int key = start + j * kGroups + group;
      float score = 0.0F;
#pragma unroll
      for (int i = 0; i < N; ++i) {
        score += q[i] * to_float(keys[j].at[i]);
      }
#pragma unroll
      for (int step = kLanes / 2; step > 0; step /= 2) {
        score += __shfl_xor_sync(kAllLanes, score, step);
      }
      scores[j] =
          key < last ? score - slope * static_cast<float>(position - key) : kNegativeInfinity;
      largest = fmaxf(largest, scores[j]);
    }
    const float shift = softmax.raise(largest);
#pragma unroll
    for (int j = 0; j < kKeysAtOnce; ++j) {
      const float e = expf(scores[j] - shift);
      softmax.sum += e;
#pragma unroll
      for (int i = 0; i < N; ++i) {
        softmax.out[i] += e * to_float(values[j].at[i]);
      }
    }
  }

  if (column == 0) {
    group_max[group] = softmax.max;
    group_sum[group] = softmax.sum;
  }
#pragma unroll
  for (int i = 0; i < N; ++i) {
    group_out[group][column + i] = softmax.out[i];
  }
  __syncthreads();
  float* const result = parts + static_cast<std::int64_t>(blockIdx.x) * (2 + kDim);
  for (int c = threadIdx.x; c < kDim; c += kThreads) {
    PartialSoftmax<1> all;
    for (int g = 0; g < kGroups; ++g) {
      const float weight = expf(group_max[g] - all.raise(group_max[g]));
      all.sum += weight * group_sum[g];
      all.out[0] += weight * group_out[g][c];
    }
    result[2 + c] = all.out[0];
    if (c == 0) {
      result[0] = all.max;
      result[1] = all.sum;
    }
  }
}

/// Joins the parts of one query and head, a thread a column.
template <class T>
__global__ void __launch_bounds__(kThreads)
    join_parts(const Problem<T> p, int part_count, const float* parts) {
  const int row = blockIdx.x;
  const int token = row / p.heads;
  const int pitch = 2 + p.dim;
  const float* mine = parts + static_cast<std::int64_t>(row) * part_count * pitch;
  T* const out =
      p.out.head(token / p.queries, row % p.heads, p.dim) + token % p.queries * p.out.row_stride;
  for (int c = threadIdx.x; c < p.dim; c += kThreads) {
    PartialSoftmax<1> all;
    for (int i = 0; i < part_count; ++i) {
      const float* part = mine + i * pitch;
      const float weight = expf(part[0] - all.raise(part[0]));
      all.sum += weight * part[1];
      all.out[0] += weight * part[2 + c];
    }
    out[c] = from_float<T>(all.out[0] / all.sum);
  }
}

template <class T, int kDim>
void decode(Context& ctx, const Problem<T>& p) {
  constexpr int kKeysABlock = kThreads / (kDim / kLanesOf<T>)*kKeysAtOnce;
  const int keys = p.offset + p.queries;
  const std::int64_t rows = static_cast<std::int64_t>(p.batch) * p.queries * p.heads;
  const int most_parts = static_cast<int>(ceil_div<std::int64_t>(kBlocksWanted, rows));
  const int rounds = ceil_div(ceil_div(keys, kKeysABlock), most_parts);
  const int keys_a_part = rounds * kKeysABlock;
  const int part_count = ceil_div(keys, keys_a_part);
  float* const parts = ctx.scratch({{rows, part_count, 2 + kDim}, DType::kF32}).f32();
  const cudaStream_t stream = stream_of(ctx);
  launch(attend_part<T, kDim>, rows * part_count, kThreads, 0, stream, p, part_count, keys_a_part,
         parts);
  launch(join_parts<T>, rows, kThreads, 0, stream, p, part_count, static_cast<const float*>(parts));
}

template <class T>
bool aligned(std::initializer_list<const T*> pointers, std::int64_t width) {
  bool all = width % kLanesOf<T> == 0;
  for (const T* pointer : pointers) {
    all = all && reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0;
  }
  return all;
}

template <class T>
void attend(Context& ctx, const Problem<T>& p) {
  const bool decodes =
      p.queries <= kMostDecoded && aligned<T>({p.q.data, p.k.data, p.v.data}, p.dim);
  if (decodes && p.dim == 32) {
    decode<T, 32>(ctx, p);
  } else if (decodes && p.dim == 64) {
    decode<T, 64>(ctx, p);
  } else if (decodes && p.dim == 128) {
    decode<T, 128>(ctx, p);
  } else {
    forward(stream_of(ctx), p);
  }
}

}  // namespace

void attention_cached(Context& ctx, const Attention& attention, const Sequence& seq,
                      const Tensor& qkv, const KeyValueCache& cache, const Tensor& out) {
  visit_float(qkv.dtype(), [&](auto type) {
    using T = decltype(type);
    const std::int64_t width = out.cols();
    const std::int64_t capacity = cache.keys.dim(1);
    T* const new_rows = data_of<T>(qkv);
    T* const keys = data_of<T>(cache.keys);
    T* const values = data_of<T>(cache.values);
    constexpr int N = kLanesOf<T>;
    const bool wide = aligned<T>({new_rows, keys, values}, width);
    const std::int64_t pieces = seq.tokens() * width / (wide ? N : 1);
    launch(wide ? append<T, N> : append<T, 1>,
           std::min<std::int64_t>(ceil_div<std::int64_t>(pieces, kThreads), 4096), kThreads, 0,
           stream_of(ctx), static_cast<const T*>(new_rows), keys, values,
           static_cast<int>(seq.batch), static_cast<int>(seq.length), static_cast<int>(width),
           capacity, static_cast<int>(seq.offset));

    Problem<T> problem = problem_of<T>(attention, seq, qkv, out);
    problem.k = rows_of<const T>(cache.keys, capacity);
    problem.v = rows_of<const T>(cache.values, capacity);
    attend(ctx, problem);
  });
}

}  // namespace carope::cuda
