#include "ops/attention/attention_problem.cuh"

// Attention in float arithmetic for every head dimension: tiles of 64 queries by 64 keys, and slabs
// of 64 columns of the heads. A block owns one slab of what it writes and goes through all slabs
// for the scores; heads of more than 64 columns repeat that work, once a slab.
namespace carope::cuda::tiled {
namespace {

constexpr int kTile = 64;             // queries, keys and columns of a slab
constexpr int kSide = 16;             // a block is kSide x kSide threads
constexpr int kEach = kTile / kSide;  // rows and columns of a tile that a thread computes
constexpr int kThreads = kSide * kSide;
constexpr int kPitch = kTile + 4;  // spreads 16-byte reads down a column over the banks

using SharedTile = float[kPitch];  // kTile of these
using Sums = float[kEach][kEach];

/// A thread's rows of a tile are row() + {0, 16, 32, 48}. Its columns are column() + {0, 16, ...}
/// in a tile of scores, and wide_column() + {0, 1, 2, 3} in a slab.
__device__ int row() { return static_cast<int>(threadIdx.x) / kSide; }
__device__ int column() { return static_cast<int>(threadIdx.x) % kSide; }
__device__ int wide_column() { return column() * kEach; }

__device__ float at(const float4& v, int i) { return (&v.x)[i]; }
__device__ float4 four(const float* from) { return *reinterpret_cast<const float4*>(from); }

/// The part of one head that a block works with.
struct Slab {
  int b, h, tile;
  int first;  // column of the slab that the block owns

  template <class T>
  __device__ explicit Slab(const Problem<T>& p) {
    const int slabs = (p.dim + kTile - 1) / kTile;
    const BlockOf block(p.heads, (p.queries + kTile - 1) / kTile * slabs);
    b = block.b;
    h = block.h;
    tile = block.tile / slabs;
    first = block.tile % slabs * kTile;
  }
};

/// Copies kTile rows and columns to shared memory; what is past the last of either becomes zero.
template <class T>
__device__ void load(SharedTile* to, const T* from, std::int64_t stride, int rows, int columns) {
  for (int i = threadIdx.x; i < kTile * kTile; i += kThreads) {
    const int r = i / kTile;
    const int c = i % kTile;
    to[r][c] = r < rows && c < columns ? to_float(from[r * stride + c]) : 0.0F;
  }
}

/// sums[i][j] += Σ_c a[row i][c] b[column j][c].
__device__ void add_scores(Sums& sums, const SharedTile* a, const SharedTile* b) {
#pragma unroll 4
  for (int c = 0; c < kTile; c += 4) {
    float4 left[kEach], right[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      left[i] = four(&a[row() + kSide * i][c]);
      right[i] = four(&b[column() + kSide * i][c]);
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          sums[i][j] += at(left[i], e) * at(right[j], e);
        }
      }
    }
  }
}

/// sums[i][j] += Σ_k a[row i][k] b[k][wide column + j].
__device__ void add_product(Sums& sums, const SharedTile* a, const SharedTile* b) {
#pragma unroll 4
  for (int k = 0; k < kTile; ++k) {
    const float4 right = four(&b[k][wide_column()]);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        sums[i][j] += a[row() + kSide * i][k] * at(right, j);
      }
    }
  }
}

/// sums[i][j] += Σ_k a[k][row i] b[k][wide column + j].
__device__ void add_transposed_product(Sums& sums, const SharedTile* a, const SharedTile* b) {
#pragma unroll 4
  for (int k = 0; k < kTile; ++k) {
    const float4 right = four(&b[k][wide_column()]);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        sums[i][j] += a[k][row() + kSide * i] * at(right, j);
      }
    }
  }
}

/// sums = a bᵀ over all columns of the heads, through two tiles of shared memory. Begins and ends
/// with all threads done with these.
template <class T>
__device__ void score(Sums& sums, SharedTile* a_tile, SharedTile* b_tile, int dim, const T* a,
                      std::int64_t a_stride, int a_rows, const T* b, std::int64_t b_stride,
                      int b_rows) {
  for (int c = 0; c < dim; c += kTile) {
    load(a_tile, a + c, a_stride, a_rows, dim - c);
    load(b_tile, b + c, b_stride, b_rows, dim - c);
    __syncthreads();
    add_scores(sums, a_tile, b_tile);
    __syncthreads();
  }
}

/// Calls visit(i, j, query, key, seen) for the scores of this thread.
template <class T, class Visit>
__device__ void for_each_score(const Problem<T>& p, int b, int query, int key, const Visit& visit) {
  const int offset = p.offset(b);
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int q = query + row() + kSide * i;
    const int first = p.first_key(b, q);
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int k = key + column() + kSide * j;
      visit(i, j, q, k, k >= first && k <= offset + q);
    }
  }
}

/// Writes this thread's part of a slab: kTile rows from `to`, those and the columns that exist.
template <class T>
__device__ void store(const Sums& sums, T* to, std::int64_t stride, int rows, int columns,
                      float factor) {
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int r = row() + kSide * i;
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      if (r < rows && wide_column() + j < columns) {
        to[r * stride + wide_column() + j] = from_float<T>(sums[i][j] * factor);
      }
    }
  }
}

/// Reductions over the threads that share a row: half a warp.
__device__ float row_max(float x) {
  for (int step = kSide / 2; step > 0; step /= 2) {
    x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, step));
  }
  return x;
}
__device__ float row_sum(float x) {
  for (int step = kSide / 2; step > 0; step /= 2) {
    x += __shfl_xor_sync(kAllLanes, x, step);
  }
  return x;
}

template <class T>
__global__ void __launch_bounds__(kThreads) attend(const Problem<T> p) {
  extern __shared__ __align__(16) SharedTile tiles[];
  SharedTile* const a_tile = tiles;
  SharedTile* const b_tile = tiles + kTile;
  SharedTile* const probabilities = tiles + 2 * kTile;
  const Slab slab(p);
  const int query = slab.tile * kTile;
  const T* q = p.q.head(slab.b, slab.h, p.dim) + query * p.q.row_stride;
  const T* k = p.k.head(slab.b, slab.h, p.dim);
  const T* v = p.v.head(slab.b, slab.h, p.dim) + slab.first;
  const float slope = p.slope(slab.h);
  const int last_key = p.offset(slab.b) + min(query + kTile, p.queries);

  Sums out = {};
  float max[kEach], sum[kEach];
  for (int i = 0; i < kEach; ++i) {
    max[i] = kNegativeInfinity;
    sum[i] = 0.0F;
  }
  for (int key = p.first_key(slab.b, query); key < last_key; key += kTile) {
    Sums scores = {};
    score(scores, a_tile, b_tile, p.dim, q, p.q.row_stride, p.queries - query,
          k + key * p.k.row_stride, p.k.row_stride, last_key - key);
    for_each_score(p, slab.b, query, key, [&](int i, int j, int at_query, int at_key, bool seen) {
      const auto distance = static_cast<float>(p.offset(slab.b) + at_query - at_key);
      scores[i][j] = seen ? scores[i][j] * p.scale - slope * distance : kNegativeInfinity;
    });
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      float largest = max[i];
      for (const float s : scores[i]) {
        largest = fmaxf(largest, s);
      }
      largest = row_max(largest);
      // A row that has seen nothing yet must not compute infinity minus infinity.
      const float shift = largest == kNegativeInfinity ? 0.0F : largest;
      const float shrink = expf(max[i] - shift);
      max[i] = largest;
      float more = 0.0F;
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        const float e = expf(scores[i][j] - shift);
        more += e;
        probabilities[row() + kSide * i][column() + kSide * j] = e;
        out[i][j] *= shrink;
      }
      sum[i] = sum[i] * shrink + row_sum(more);
    }
    load(b_tile, v + key * p.v.row_stride, p.v.row_stride, last_key - key, p.dim - slab.first);
    __syncthreads();
    add_product(out, probabilities, b_tile);
    __syncthreads();
  }
  for (int i = 0; i < kEach; ++i) {
    const int at_query = query + row() + kSide * i;
    for (float& o : out[i]) {
      o /= sum[i];
    }
    if (p.logsumexp != nullptr && slab.first == 0 && column() == 0 && at_query < p.queries) {
      p.logsumexp[(static_cast<std::int64_t>(slab.b) * p.heads + slab.h) * p.queries + at_query] =
          max[i] + logf(sum[i]);
    }
  }
  store(out, p.out.head(slab.b, slab.h, p.dim) + query * p.out.row_stride + slab.first,
        p.out.row_stride, p.queries - query, p.dim - slab.first, 1.0F);
}

/// delta [B, H, T] = Σ_d out · dout; one warp a query and head.
template <class T>
__global__ void __launch_bounds__(kThreads)
    delta_of_rows(const Problem<T> p, const Gradients<T> g, float* delta) {
  const std::int64_t index =
      (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) / kWarp;
  if (index >= static_cast<std::int64_t>(p.batch) * p.heads * p.queries) {
    return;
  }
  const auto t = static_cast<int>(index % p.queries);
  const auto h = static_cast<int>(index / p.queries % p.heads);
  const auto b = static_cast<int>(index / p.queries / p.heads);
  const T* out = p.out.head(b, h, p.dim) + t * p.out.row_stride;
  const T* dout = g.dout.head(b, h, p.dim) + t * g.dout.row_stride;
  float sum = 0.0F;
  for (int c = threadIdx.x % kWarp; c < p.dim; c += kWarp) {
    sum += to_float(out[c]) * to_float(dout[c]);
  }
  sum = warp_sum(sum);
  if (threadIdx.x % kWarp == 0) {
    delta[index] = sum;
  }
}

/// Probabilities and the gradients of the scores, of 64 queries and 64 keys. `a_tile` and `b_tile`
/// are where their vectors pass through.
template <class T>
__device__ void differentiate(Sums& s, Sums& ds, SharedTile* a_tile, SharedTile* b_tile,
                              const Problem<T>& p, const Gradients<T>& g, const float* delta,
                              const Slab& slab, int query, int key) {
  const int b = slab.b;
  const int h = slab.h;
  score(s, a_tile, b_tile, p.dim, p.q.head(b, h, p.dim) + query * p.q.row_stride, p.q.row_stride,
        p.queries - query, p.k.head(b, h, p.dim) + key * p.k.row_stride, p.k.row_stride,
        p.queries - key);
  score(ds, a_tile, b_tile, p.dim, g.dout.head(b, h, p.dim) + query * g.dout.row_stride,
        g.dout.row_stride, p.queries - query, p.v.head(b, h, p.dim) + key * p.v.row_stride,
        p.v.row_stride, p.queries - key);
  const std::int64_t first_row = (static_cast<std::int64_t>(b) * p.heads + h) * p.queries;
  const float slope = p.slope(h);
  for_each_score(p, b, query, key, [&](int i, int j, int at_query, int at_key, bool seen) {
    float probability = 0.0F;
    float mean = 0.0F;
    if (seen && at_query < p.queries) {
      const auto distance = static_cast<float>(at_query - at_key);
      probability = expf(s[i][j] * p.scale - slope * distance - p.logsumexp[first_row + at_query]);
      mean = delta[first_row + at_query];
    }
    s[i][j] = probability;
    ds[i][j] = probability * (ds[i][j] - mean);
  });
}

__device__ void keep(SharedTile* to, const Sums& scores) {
  for (int i = 0; i < kEach; ++i) {
    for (int j = 0; j < kEach; ++j) {
      to[row() + kSide * i][column() + kSide * j] = scores[i][j];
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    query_gradient(const Problem<T> p, const Gradients<T> g, const float* delta) {
  extern __shared__ __align__(16) SharedTile tiles[];
  SharedTile* const a_tile = tiles;
  SharedTile* const b_tile = tiles + kTile;
  SharedTile* const dscores = tiles + 2 * kTile;
  const Slab slab(p);
  const int query = slab.tile * kTile;
  const T* k = p.k.head(slab.b, slab.h, p.dim) + slab.first;
  const int last_key = min(query + kTile, p.queries);
  Sums dq = {};
  for (int key = p.first_key(slab.b, query); key < last_key; key += kTile) {
    Sums s = {}, ds = {};
    differentiate(s, ds, a_tile, b_tile, p, g, delta, slab, query, key);
    keep(dscores, ds);
    load(b_tile, k + key * p.k.row_stride, p.k.row_stride, p.queries - key, p.dim - slab.first);
    __syncthreads();
    add_product(dq, dscores, b_tile);
    __syncthreads();
  }
  store(dq, g.dq.head(slab.b, slab.h, p.dim) + query * g.dq.row_stride + slab.first,
        g.dq.row_stride, p.queries - query, p.dim - slab.first, p.scale);
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    key_gradient(const Problem<T> p, const Gradients<T> g, const float* delta) {
  extern __shared__ __align__(16) SharedTile tiles[];
  SharedTile* const a_tile = tiles;
  SharedTile* const b_tile = tiles + kTile;
  SharedTile* const probabilities = tiles + 2 * kTile;
  SharedTile* const dscores = tiles + 3 * kTile;
  const Slab slab(p);
  const int key = slab.tile * kTile;
  const T* q = p.q.head(slab.b, slab.h, p.dim) + slab.first;
  const T* dout = g.dout.head(slab.b, slab.h, p.dim) + slab.first;
  Sums dk = {}, dv = {};
  // Documents are in order: once a query sees none of these keys, no later one does.
  for (int query = key; query < p.queries && p.first_key(slab.b, query) < key + kTile;
       query += kTile) {
    Sums s = {}, ds = {};
    differentiate(s, ds, a_tile, b_tile, p, g, delta, slab, query, key);
    keep(probabilities, s);
    keep(dscores, ds);
    load(a_tile, dout + query * g.dout.row_stride, g.dout.row_stride, p.queries - query,
         p.dim - slab.first);
    load(b_tile, q + query * p.q.row_stride, p.q.row_stride, p.queries - query, p.dim - slab.first);
    __syncthreads();
    add_transposed_product(dv, probabilities, a_tile);
    add_transposed_product(dk, dscores, b_tile);
    __syncthreads();
  }
  store(dk, g.dk.head(slab.b, slab.h, p.dim) + key * g.dk.row_stride + slab.first, g.dk.row_stride,
        p.queries - key, p.dim - slab.first, p.scale);
  store(dv, g.dv.head(slab.b, slab.h, p.dim) + key * g.dv.row_stride + slab.first, g.dv.row_stride,
        p.queries - key, p.dim - slab.first, 1.0F);
}

template <class T>
std::int64_t blocks_of(const Problem<T>& p) {
  return static_cast<std::int64_t>(p.batch) * p.heads * ceil_div(p.queries, kTile) *
         ceil_div(p.dim, kTile);
}

constexpr std::size_t kTileBytes = kTile * sizeof(SharedTile);

}  // namespace

template <class T>
void plain_forward(cudaStream_t stream, const Problem<T>& p) {
  launch(attend<T>, blocks_of(p), kThreads, 3 * kTileBytes, stream, p);
}

template <class T>
void plain_backward(Context& ctx, const Problem<T>& p, const Gradients<T>& g) {
  const std::int64_t rows = static_cast<std::int64_t>(p.batch) * p.heads * p.queries;
  float* const delta = ctx.scratch({{rows}, DType::kF32}).f32();
  const cudaStream_t stream = stream_of(ctx);
  launch(delta_of_rows<T>, ceil_div<std::int64_t>(rows, kThreads / kWarp), kThreads, 0, stream, p,
         g, delta);
  launch(query_gradient<T>, blocks_of(p), kThreads, 3 * kTileBytes, stream, p, g,
         static_cast<const float*>(delta));
  launch(key_gradient<T>, blocks_of(p), kThreads, 4 * kTileBytes, stream, p, g,
         static_cast<const float*>(delta));
}

template void plain_forward(cudaStream_t, const Problem<float>&);
template void plain_forward(cudaStream_t, const Problem<bf16>&);
template void plain_backward(Context&, const Problem<float>&, const Gradients<float>&);
template void plain_backward(Context&, const Problem<bf16>&, const Gradients<bf16>&);

}  // namespace carope::cuda::tiled
