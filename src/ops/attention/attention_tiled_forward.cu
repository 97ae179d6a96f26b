#include "ops/attention/attention_problem.cuh"
#include "ops/attention/attention_tiled.h"
#include "ops/cuda/tensor_core.cuh"

namespace carope::cuda::tiled {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarp;
constexpr int kKeys = 64;   // that are in shared memory together
constexpr int kChunk = 32;  // of them that a warp scores at once: more would not fit its registers

/// How the queries of a block are spread over its warps: kTiles x 16 each. Two tiles use what is
/// read from shared memory twice, as far as the registers allow it.
template <int kDim>
struct Layout {
  static constexpr int kTiles = kDim <= 64 ? 2 : 1;
  static constexpr int kRows = 16 * kTiles;
  static constexpr int kQueries = kWarps * kRows;
  static constexpr int kQueryBytes = kQueries * SharedRows<kDim>::kRowBytes;
  static constexpr int kKeyBytes = kKeys * SharedRows<kDim>::kRowBytes;
  static constexpr int kBytes = kQueryBytes + 4 * kKeyBytes;  // two stages of keys and values
};

/// Softmax and its product with the values for the queries of one warp, key tile by key tile.
/// Scores stay unscaled: the scale goes into the exponent. Lane l has rows l / 4 + {0, 8} of each
/// tile of 16, and of each the columns that multiply_add gives it.
template <int kDim>
struct WarpSoftmax {
  static constexpr int kTiles = Layout<kDim>::kTiles;
  using Scores = float[kTiles][kChunk / 8][4];

  float out[kTiles][kDim / 8][4] = {};
  float max[kTiles][2];
  float sum[kTiles][2] = {};  // of this lane's columns only, until finish()

  __device__ WarpSoftmax() {
    for (auto& row : max) {
      row[0] = row[1] = kNegativeInfinity;
    }
  }

  /// Turns scores into exponentials against the largest score so far.
  __device__ void take(Scores& scores, float scale_log2) {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float largest = max[m][half];
#pragma unroll
        for (auto& s : scores[m]) {
          largest = fmaxf(largest, fmaxf(s[2 * half], s[2 * half + 1]));
        }
        largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 2));
        // A row that has seen nothing yet must not compute infinity minus infinity.
        const float shift = largest == kNegativeInfinity ? 0.0F : largest * scale_log2;
        const float shrink = fast_exp2(max[m][half] * scale_log2 - shift);
        max[m][half] = largest;
        sum[m][half] *= shrink;
#pragma unroll
        for (auto& o : out[m]) {
          o[2 * half] *= shrink;
          o[2 * half + 1] *= shrink;
        }
#pragma unroll
        for (auto& s : scores[m]) {
          s[2 * half] = fast_exp2(s[2 * half] * scale_log2 - shift);
          s[2 * half + 1] = fast_exp2(s[2 * half + 1] * scale_log2 - shift);
          sum[m][half] += s[2 * half] + s[2 * half + 1];
        }
      }
    }
  }

  __device__ void add_values(const Scores& probabilities, const SharedRows<kDim>& values) {
#pragma unroll
    for (int k = 0; k < kChunk / 16; ++k) {
      Fragment left[kTiles];
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        left[m] = as_left_factor(probabilities[m][2 * k], probabilities[m][2 * k + 1]);
      }
#pragma unroll
      for (int n = 0; n < kDim / 16; ++n) {
        const Fragment right = values.load_right(16 * k, n);
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
          multiply_add(out[m][2 * n], left[m], right.part[0], right.part[1]);
          multiply_add(out[m][2 * n + 1], left[m], right.part[2], right.part[3]);
        }
      }
    }
  }

  __device__ void finish() {
#pragma unroll
    for (auto& row : sum) {
#pragma unroll
      for (float& s : row) {
        s += __shfl_xor_sync(kAllLanes, s, 1);
        s += __shfl_xor_sync(kAllLanes, s, 2);
      }
    }
  }
};

/// scores = q kᵀ for the queries of a warp.
template <int kDim, int kTiles>
__device__ void score(float (&scores)[kTiles][kChunk / 8][4],
                      const Fragment (&q)[kTiles][kDim / 16], const SharedRows<kDim>& keys) {
#pragma unroll
  for (int k = 0; k < kDim / 16; ++k) {
#pragma unroll
    for (int n = 0; n < kChunk / 16; ++n) {
      const Fragment right = keys.load(16 * n, k);
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        multiply_add(scores[m][2 * n], q[m][k], right.part[0], right.part[2]);
        multiply_add(scores[m][2 * n + 1], q[m][k], right.part[1], right.part[3]);
      }
    }
  }
}

/// Calls visit(score, column) for the scores that this lane has in one of its rows; columns count
/// from the lane's first, so that they are constants.
template <int kTiles, class Visit>
__device__ void for_each_of_row(float (&scores)[kTiles][kChunk / 8][4], int m, int half,
                                const Visit& visit) {
#pragma unroll
  for (int n = 0; n < kChunk / 8; ++n) {
    visit(scores[m][n][2 * half], 8 * n);
    visit(scores[m][n][2 * half + 1], 8 * n + 1);
  }
}

/// Subtracts the slope times the distance from key to query. `query` is the index of the first row
/// among the keys.
template <int kTiles>
__device__ void slant(float (&scores)[kTiles][kChunk / 8][4], float slope, int query, int key) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = query + 16 * m + 8 * half + lane / 4;
      const auto distance = static_cast<float>(row - (key + lane % 4 * 2));
      for_each_of_row(scores, m, half, [&](float& s, int column) {
        s -= slope * (distance - static_cast<float>(column));
      });
    }
  }
}

/// Makes the scores of keys that a query does not see minus infinity.
template <int kTiles>
__device__ void mask(float (&scores)[kTiles][kChunk / 8][4], const Problem<bf16>& p, int b,
                     int query, int key) {
  const int lane = threadIdx.x % kWarp;
  const int first_column = key + lane % 4 * 2;
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = query + 16 * m + 8 * half + lane / 4;
      const int first = p.first_key(b, row) - first_column;
      const int last = p.offset(b) + row - first_column;
      for_each_of_row(scores, m, half, [&](float& s, int column) {
        s = column < first || column > last ? kNegativeInfinity : s;
      });
    }
  }
}

template <int kDim>
__global__ void __launch_bounds__(kThreads, kDim <= 64 ? 3 : 2) attend(const Problem<bf16> p) {
  using L = Layout<kDim>;
  extern __shared__ __align__(1024) std::byte shared[];
  const SharedRows<kDim> queries{shared_address(shared)};
  const std::uint32_t stages = queries.base + L::kQueryBytes;
  const auto keys_of = [&](int stage) {
    return SharedRows<kDim>{stages + stage * 2 * L::kKeyBytes};
  };
  const auto values_of = [&](int stage) {
    return SharedRows<kDim>{stages + (stage * 2 + 1) * L::kKeyBytes};
  };

  const int tiles = (p.queries + L::kQueries - 1) / L::kQueries;
  const BlockOf block(p.heads, tiles);
  const int b = block.b;
  const int first_query = (tiles - 1 - block.tile) * L::kQueries;  // the longest first
  const int own_row = block.warp(kWarps) * L::kRows;
  const int lane = threadIdx.x % kWarp;
  const int query = first_query + own_row;
  const bf16* q = p.q.head(b, block.h, kDim) + first_query * p.q.row_stride;
  const bf16* k = p.k.head(b, block.h, kDim);
  const bf16* v = p.v.head(b, block.h, kDim);

  const int last_key = p.offset(b) + min(first_query + L::kQueries, p.queries);
  int key = p.first_key(b, first_query) / kKeys * kKeys;
  const auto copy_keys = [&](int from, int stage) {
    copy_rows<kThreads, kKeys>(keys_of(stage), k + from * p.k.row_stride, p.k.row_stride,
                               last_key - from);
    copy_rows<kThreads, kKeys>(values_of(stage), v + from * p.v.row_stride, p.v.row_stride,
                               last_key - from);
  };
  copy_rows<kThreads, L::kQueries>(queries, q, p.q.row_stride, p.queries - first_query);
  copy_keys(key, 0);
  finish_copies();
  Fragment q_fragments[L::kTiles][kDim / 16];
#pragma unroll
  for (int m = 0; m < L::kTiles; ++m) {
#pragma unroll
    for (int i = 0; i < kDim / 16; ++i) {
      q_fragments[m][i] = queries.load(own_row + 16 * m, i);
    }
  }

  const KeySpan seen = KeySpan::of_any(p, b, query, L::kRows);
  const KeySpan unmasked = KeySpan::of_all(p, b, query, L::kRows);
  const float scale_log2 = p.scale * kLog2E;
  const float slope = p.slope(block.h) / p.scale;  // scores are still unscaled
  WarpSoftmax<kDim> softmax;
  for (int stage = 0; key < last_key; key += kKeys, stage ^= 1) {
    if (key + kKeys < last_key) {
      copy_keys(key + kKeys, stage ^ 1);
    }
#pragma unroll 1
    for (int i = 0; i < kKeys; i += kChunk) {
      if (!seen.meets(key + i, kChunk)) {
        continue;
      }
      typename WarpSoftmax<kDim>::Scores scores = {};
      score(scores, q_fragments, keys_of(stage).from(i));
      if (slope != 0.0F) {
        slant(scores, slope, p.offset(b) + query, key + i);
      }
      if (!unmasked.holds(key + i, kChunk)) {
        mask(scores, p, b, query, key + i);
      }
      softmax.take(scores, scale_log2);
      softmax.add_values(scores, values_of(stage).from(i));
    }
    finish_copies();
  }

  softmax.finish();
  float factor[L::kTiles][2];
#pragma unroll
  for (int m = 0; m < L::kTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      factor[m][half] = 1.0F / softmax.sum[m][half];
      const int row = query + 16 * m + 8 * half + lane / 4;
      if (p.logsumexp != nullptr && lane % 4 == 0 && row < p.queries) {
        p.logsumexp[(static_cast<std::int64_t>(b) * p.heads + block.h) * p.queries + row] =
            softmax.max[m][half] * p.scale + logf(softmax.sum[m][half]);
      }
    }
  }
  store_rows<L::kTiles>(queries.from(own_row), softmax.out, factor,
                        p.out.head(b, block.h, kDim) + query * p.out.row_stride, p.out.row_stride,
                        p.queries - query);
}

template <int kDim>
void launch_attend(cudaStream_t stream, const Problem<bf16>& p) {
  using L = Layout<kDim>;
  launch(attend<kDim>,
         static_cast<std::int64_t>(p.batch) * p.heads * ceil_div(p.queries, L::kQueries), kThreads,
         L::kBytes, stream, p);
}

}  // namespace

void forward(cudaStream_t stream, const Problem<bf16>& p) {
  if (!suits_tensor_cores(p.dim, {p.q.data, p.k.data, p.v.data, p.out.data})) {
    plain_forward(stream, p);
  } else if (p.dim == 32) {
    launch_attend<32>(stream, p);
  } else if (p.dim == 64) {
    launch_attend<64>(stream, p);
  } else {
    launch_attend<128>(stream, p);
  }
}

void forward(cudaStream_t stream, const Problem<float>& p) { plain_forward(stream, p); }

void attention(Context& ctx, const Attention& attention, const Sequence& seq, const Tensor& qkv,
               const Tensor& out, const Tensor& logsumexp) {
  visit_float(qkv.dtype(), [&](auto type) {
    Problem<decltype(type)> problem = problem_of<decltype(type)>(attention, seq, qkv, out);
    problem.logsumexp = logsumexp.f32();
    forward(stream_of(ctx), problem);
  });
}

}  // namespace carope::cuda::tiled
