#include "ops/attention/attention_problem.cuh"
#include "ops/attention/partial_softmax.cuh"
#include "ops/cuda/early_start.cuh"

namespace carope::cuda {
namespace {

using namespace tiled;

constexpr int kThreads = 128;
constexpr int kBlocksWanted = 1024;  // keys are split until there are so many blocks
constexpr int kKeysAtOnce = 4;       // that a thread has on the way

/// Copies k and v of the new tokens into the cache, N elements a thread.
template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    append(const T* qkv, T* keys, T* values, int batch, int length, int width,
           std::int64_t capacity, const std::int32_t* offsets) {
  const std::int64_t pieces = width / N;
  const std::int64_t count = static_cast<std::int64_t>(batch) * length * pieces;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count;
       i += static_cast<std::int64_t>(gridDim.x) * kThreads) {
    const std::int64_t token = i / pieces;
    const std::int64_t column = i % pieces * N;
    const std::int64_t b = token / length;
    const int offset = offsets != nullptr ? offsets[b] : 0;
    const std::int64_t slot = (b * capacity + offset + token % length) * width + column;
    const T* row = qkv + token * 3 * width + column;
    const auto k = Vec<T, N>::load(row + width);
    const auto v = Vec<T, N>::load(row + 2 * width);
    k.store(keys + slot);
    v.store(values + slot);
  }
}

template <class T>
bool aligned(std::initializer_list<const T*> pointers, std::int64_t width) {
  bool all = width % kLanesOf<T> == 0;
  for (const T* pointer : pointers) {
    all = all && reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0;
  }
  return all;
}

/// Attention from a few new tokens, whose queries are decoded one by one. Their keys and values are
/// the problem's k and v, and go into the cache.
template <class T>
struct Decoding {
  Problem<T> p;
  Rows<T> keys, values;  // of the cache
  int unit;              // keys that a block takes at once
  int most_parts;        // that the keys of a query and head are split into
  float* parts;          // [row, part, 2 + D] max, sum and the weighted sum of values
  int* arrived;          // [row] parts that are done; 0 before and after
};

/// Which part of the keys of which query and head a block works on. Where only the device knows how
/// many keys there are, some blocks find that there is nothing left for them.
struct Place {
  int row;  // (b * T + t) * H + h
  int b, t, h, part;
  int offset, position;
  int parts;        // that there are
  int first, last;  // keys

  template <class T>
  __device__ explicit Place(const Decoding<T>& d)
      : row(blockIdx.x / d.most_parts),
        b(row / d.p.heads / d.p.queries),
        t(row / d.p.heads % d.p.queries),
        h(row % d.p.heads),
        part(blockIdx.x % d.most_parts),
        offset(d.p.offset(b)),
        position(offset + t) {
    const int units = position / d.unit + 1;
    const int keys = (units + d.most_parts - 1) / d.most_parts * d.unit;  // a part
    parts = position / keys + 1;
    first = part * keys;
    last = min(first + keys, position + 1);
  }

  /// Where the vector of a key is: those of the new tokens are not yet in the cache.
  template <class T>
  __device__ const T* vector(const T* cached, std::int64_t stride, const T* added,
                             std::int64_t added_stride, int key) const {
    return key < offset ? cached + key * stride : added + (key - offset) * added_stride;
  }
};

/// Keeps a column of a part, or of the result where there is one part only.
template <class T>
__device__ void store_column(const Decoding<T>& d, const Place& place, int column,
                             const PartialSoftmax<1>& softmax) {
  if (place.parts == 1) {
    d.p.out.head(place.b, place.h, d.p.dim)[place.t * d.p.out.row_stride + column] =
        from_float<T>(softmax.out[0] / softmax.sum);
    return;
  }
  float* const part = d.parts + static_cast<std::int64_t>(blockIdx.x) * (2 + d.p.dim);
  part[2 + column] = softmax.out[0];
  if (column == 0) {
    part[0] = softmax.max;
    part[1] = softmax.sum;
  }
}

/// Joins the parts of a query and head, in their order, in the block that is done last.
template <class T>
__device__ void join_parts(const Decoding<T>& d, const Place& place) {
  __shared__ int is_last[1];
  __shared__ float maxima[kBlocksWanted];
  __shared__ float sums[kBlocksWanted];
  if (place.parts == 1) {
    return;
  }
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    is_last[0] = atomicAdd(d.arrived + place.row, 1) == place.parts - 1 ? 1 : 0;
    if (is_last[0] == 1) {
      d.arrived[place.row] = 0;
    }
    __threadfence();
  }
  __syncthreads();
  if (is_last[0] == 0) {
    return;
  }
  // What other blocks wrote is read past the first-level cache, and many loads at a time.
  constexpr int kLoads = 8;
  const int pitch = 2 + d.p.dim;
  const float* mine = d.parts + static_cast<std::int64_t>(place.row) * d.most_parts * pitch;
  for (int i = threadIdx.x; i < place.parts; i += kThreads) {
    maxima[i] = __ldcg(mine + i * pitch);
    sums[i] = __ldcg(mine + i * pitch + 1);
  }
  __syncthreads();
  float max = kNegativeInfinity;
  for (int i = 0; i < place.parts; ++i) {
    max = fmaxf(max, maxima[i]);
  }
  T* const out = d.p.out.head(place.b, place.h, d.p.dim) + place.t * d.p.out.row_stride;
  for (int c = threadIdx.x; c < d.p.dim; c += kThreads) {
    float total = 0.0F;
    float weighted = 0.0F;
    for (int begin = 0; begin < place.parts; begin += kLoads) {
      float values[kLoads];
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        values[i] = __ldcg(mine + min(begin + i, place.parts - 1) * pitch + 2 + c);
      }
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        if (begin + i < place.parts) {
          const float weight = expf(maxima[begin + i] - max);
          total += weight * sums[begin + i];
          weighted += weight * values[i];
        }
      }
    }
    out[c] = from_float<T>(weighted / total);
  }
}

/// Attends to one part. kDim / N lanes share a key, N elements each; every such group has a softmax
/// of its own until the end.
template <class T, int kDim>
__global__ void __launch_bounds__(kThreads) attend_part(const Decoding<T> d) {
  constexpr int N = kLanesOf<T>;
  constexpr int kLanes = kDim / N;
  constexpr int kGroups = kThreads / kLanes;
  static_assert(kLanes <= static_cast<int>(kWarp));
  __shared__ float group_max[kGroups];
  __shared__ float group_sum[kGroups];
  __shared__ float group_out[kGroups][kDim];

  const Problem<T>& p = d.p;
  let_next_begin();
  wait_for_previous();
  const Place place(d);
  if (place.part >= place.parts) {
    return;
  }
  const int group = threadIdx.x / kLanes;
  const int column = threadIdx.x % kLanes * N;
  const float slope = p.slope(place.h);
  T* const k = d.keys.head(place.b, place.h, kDim) + column;
  T* const v = d.values.head(place.b, place.h, kDim) + column;
  const T* new_k = p.k.head(place.b, place.h, kDim) + column;
  const T* new_v = p.v.head(place.b, place.h, kDim) + column;
  float q[N];
  unpack(Vec<T, N>::load(p.q.head(place.b, place.h, kDim) + place.t * p.q.row_stride + column), q);
#pragma unroll
  for (float& element : q) {
    element *= p.scale;
  }

  PartialSoftmax<N> softmax;
  for (int start = place.first; start < place.last; start += kGroups * kKeysAtOnce) {
    Vec<T, N> keys[kKeysAtOnce], values[kKeysAtOnce];
#pragma unroll
    for (int j = 0; j < kKeysAtOnce; ++j) {
      // Past the end the last key is read again, and its score ignored below.
      const int key = min(start + j * kGroups + group, place.last - 1);
      keys[j] = Vec<T, N>::load(place.vector<T>(k, d.keys.row_stride, new_k, p.k.row_stride, key));
      values[j] =
          Vec<T, N>::load(place.vector<T>(v, d.values.row_stride, new_v, p.v.row_stride, key));
    }
    float scores[kKeysAtOnce];
    float largest = kNegativeInfinity;
#pragma unroll
    for (int j = 0; j < kKeysAtOnce; ++j) {
      const int key = start + j * kGroups + group;
      if (key == place.position) {
        keys[j].store(k + key * d.keys.row_stride);
        values[j].store(v + key * d.values.row_stride);
      }
      float score = 0.0F;
#pragma unroll
      for (int i = 0; i < N; ++i) {
        score += q[i] * to_float(keys[j].at[i]);
      }
#pragma unroll
      for (int step = kLanes / 2; step > 0; step /= 2) {
        score += __shfl_xor_sync(kAllLanes, score, step);
      }
      scores[j] = key < place.last ? score - slope * static_cast<float>(place.position - key)
                                   : kNegativeInfinity;
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
  for (int c = threadIdx.x; c < kDim; c += kThreads) {
    PartialSoftmax<1> all;
    for (const float max : group_max) {
      all.max = fmaxf(all.max, max);  // finite: no part is without a key
    }
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const float weight = expf(group_max[g] - all.max);
      all.sum += weight * group_sum[g];
      all.out[0] += weight * group_out[g][c];
    }
    store_column(d, place, c, all);
  }
  join_parts(d, place);
}

/// The same for any head dimension: a thread has a key for the scores, and columns for the sums.
template <class T>
__global__ void __launch_bounds__(kThreads) attend_part_of_any(const Decoding<T> d) {
  extern __shared__ __align__(16) float out[];  // [D]
  __shared__ float weights[kThreads];

  const Problem<T>& p = d.p;
  const Place place(d);
  if (place.part >= place.parts) {
    return;
  }
  const float slope = p.slope(place.h);
  T* const k = d.keys.head(place.b, place.h, p.dim);
  T* const v = d.values.head(place.b, place.h, p.dim);
  const T* new_k = p.k.head(place.b, place.h, p.dim);
  const T* new_v = p.v.head(place.b, place.h, p.dim);
  const T* q = p.q.head(place.b, place.h, p.dim) + place.t * p.q.row_stride;
  for (int c = threadIdx.x; c < p.dim; c += kThreads) {
    out[c] = 0.0F;
    if (place.part == place.parts - 1) {
      k[place.position * d.keys.row_stride + c] = new_k[place.t * p.k.row_stride + c];
      v[place.position * d.values.row_stride + c] = new_v[place.t * p.v.row_stride + c];
    }
  }

  PartialSoftmax<1> softmax;  // its sum, and `out` for each column, in every thread alike
  for (int start = place.first; start < place.last; start += kThreads) {
    const int key = start + static_cast<int>(threadIdx.x);
    float score = kNegativeInfinity;
    if (key < place.last) {
      const T* vector = place.vector<T>(k, d.keys.row_stride, new_k, p.k.row_stride, key);
      score = 0.0F;
      for (int c = 0; c < p.dim; ++c) {
        score += to_float(q[c]) * p.scale * to_float(vector[c]);
      }
      score -= slope * static_cast<float>(place.position - key);
    }
    __syncthreads();  // the weights before were used
    weights[threadIdx.x] = score;
    __syncthreads();
    const int count = min(kThreads, place.last - start);
    float largest = kNegativeInfinity;
    for (int i = 0; i < count; ++i) {
      largest = fmaxf(largest, weights[i]);
    }
    softmax.out[0] = 1.0F;
    const float shift = softmax.raise(largest);
    const float shrink = softmax.out[0];
    for (int i = 0; i < count; ++i) {
      softmax.sum += expf(weights[i] - shift);
    }
    for (int c = threadIdx.x; c < p.dim; c += kThreads) {
      float sum = out[c] * shrink;
      for (int i = 0; i < count; ++i) {
        const T* vector = place.vector<T>(v, d.values.row_stride, new_v, p.v.row_stride, start + i);
        sum += expf(weights[i] - shift) * to_float(vector[c]);
      }
      out[c] = sum;
    }
  }
  for (int c = threadIdx.x; c < p.dim; c += kThreads) {
    softmax.out[0] = out[c];
    store_column(d, place, c, softmax);
  }
  join_parts(d, place);
}

/// Counts of parts that are done, zero between kernels.
struct Arrivals {
  explicit Arrivals(const Context& ctx) : memory(ctx.device(), kBlocksWanted * sizeof(int)) {
    clear(memory.data(), memory.bytes(), memory.device());
  }

  Memory memory;
};

/// The split depends on how many keys a row has, which only the device knows.
template <class T>
void decode(Context& ctx, Decoding<T> d, std::int64_t capacity) {
  const int dim = d.p.dim;
  const bool wide =
      aligned<T>({d.p.q.data, d.p.k.data, d.p.v.data, d.keys.data, d.values.data}, dim) &&
      (dim == 32 || dim == 64 || dim == 128);
  d.unit = wide ? kThreads / (dim / kLanesOf<T>)*kKeysAtOnce : kThreads;
  const std::int64_t rows = static_cast<std::int64_t>(d.p.batch) * d.p.queries * d.p.heads;
  d.most_parts = static_cast<int>(std::min(ceil_div<std::int64_t>(kBlocksWanted, rows),
                                           ceil_div<std::int64_t>(capacity, d.unit)));
  const Shape parts{rows, d.most_parts, 2 + dim};
  d.parts = ctx.scratch({parts, DType::kF32}).f32();
  d.arrived = static_cast<int*>(ctx.state<Arrivals>().memory.data());
  const auto blocks = static_cast<unsigned>(rows * d.most_parts);
  if (wide && dim == 32) {
    launch_early(ctx, attend_part<T, 32>, dim3(blocks), kThreads, d);
  } else if (wide && dim == 64) {
    launch_early(ctx, attend_part<T, 64>, dim3(blocks), kThreads, d);
  } else if (wide) {
    launch_early(ctx, attend_part<T, 128>, dim3(blocks), kThreads, d);
  } else {
    launch(attend_part_of_any<T>, blocks, kThreads, dim * sizeof(float), stream_of(ctx), d);
  }
}

template <class T>
void append_all(Context& ctx, const Sequence& seq, const Tensor& qkv, const KeyValueCache& cache) {
  const std::int64_t width = cache.keys.cols();
  const std::int64_t capacity = cache.keys.dim(1);
  T* const new_rows = data_of<T>(qkv);
  T* const keys = data_of<T>(cache.keys);
  T* const values = data_of<T>(cache.values);
  constexpr int N = kLanesOf<T>;
  const bool wide = aligned<T>({new_rows, keys, values}, width);
  const std::int64_t pieces = seq.tokens() * width / (wide ? N : 1);
  launch(wide ? append<T, N> : append<T, 1>,
         std::min<std::int64_t>(ceil_div<std::int64_t>(pieces, kThreads), 4096), kThreads, 0,
         stream_of(ctx), static_cast<const T*>(new_rows), keys, values, static_cast<int>(seq.batch),
         static_cast<int>(seq.length), static_cast<int>(width), capacity,
         static_cast<const std::int32_t*>(seq.offsets.raw()));
}

}  // namespace

void attention_cached(Context& ctx, const Attention& attention, const Sequence& seq,
                      const Tensor& qkv, const KeyValueCache& cache, const Tensor& out) {
  visit_float(qkv.dtype(), [&](auto type) {
    using T = decltype(type);
    const std::int64_t capacity = cache.keys.dim(1);
    Problem<T> problem = problem_of<T>(attention, seq, qkv, out);
    if (seq.length <= kMostDecoded) {
      decode<T>(ctx,
                {.p = problem,
                 .keys = rows_of<T>(cache.keys, capacity),
                 .values = rows_of<T>(cache.values, capacity)},
                capacity);
      return;
    }
    append_all<T>(ctx, seq, qkv, cache);
    problem.k = rows_of<const T>(cache.keys, capacity);
    problem.v = rows_of<const T>(cache.values, capacity);
    forward(stream_of(ctx), problem);
  });
}

}  // namespace carope::cuda
