#include "ops/attention/attention_problem.cuh"
#include "ops/attention/attention_tiled.h"
#include "ops/cuda/tensor_core.cuh"

// Two kernels, each of which owns what it writes, so nothing is added up across blocks: one takes
// queries and loops over the keys they see, the other takes keys and loops over the queries that
// see them. Both compute the probabilities again: seven products instead of five, but no sum of dq
// travels through memory. Probabilities and their gradients never leave the registers.
namespace carope::cuda::tiled {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarp;
constexpr int kStreamed = 64;  // rows of the other side that are in shared memory together
constexpr int kChunk = 16;     // of them that a warp takes at once

/// How the rows a block owns are spread over its warps: kTiles x 16 each. Two tiles use what is
/// read from shared memory twice, as far as the registers allow it.
template <int kDim>
struct Layout {
  static constexpr int kTiles = kDim <= 64 ? 2 : 1;
  static constexpr int kRows = 16 * kTiles;
  static constexpr int kOwned = kWarps * kRows;
  static constexpr int kOwnedBytes = kOwned * SharedRows<kDim>::kRowBytes;
  static constexpr int kStreamedBytes = kStreamed * SharedRows<kDim>::kRowBytes;
  static constexpr int kTermBytes = kStreamed * static_cast<int>(sizeof(float2));
  static constexpr int kBytes = 2 * (kOwnedBytes + 2 * kStreamedBytes);
};

/// What the backward pass needs of a query besides its vectors: (log2(e) logsumexp, Σ_d out · dout)
/// [B, H, T]. The first kernel writes it, the second reads it.
using RowTerm = float2;

template <int kDim>
using Owned = Fragment[Layout<kDim>::kTiles][kDim / 16];
template <int kDim>
using Sums = float[Layout<kDim>::kTiles][kDim / 8][4];
template <int kDim>
using Scores = float[Layout<kDim>::kTiles][kChunk / 8][4];

template <int kDim>
__device__ void load_owned(Owned<kDim>& owned, const SharedRows<kDim>& rows) {
#pragma unroll
  for (int m = 0; m < Layout<kDim>::kTiles; ++m) {
#pragma unroll
    for (int k = 0; k < kDim / 16; ++k) {
      owned[m][k] = rows.load(16 * m, k);
    }
  }
}

/// scores = owned · streamedᵀ for a chunk of streamed rows.
template <int kDim>
__device__ void score(Scores<kDim>& scores, const Owned<kDim>& owned,
                      const SharedRows<kDim>& streamed) {
#pragma unroll
  for (int k = 0; k < kDim / 16; ++k) {
    const Fragment right = streamed.load(0, k);
#pragma unroll
    for (int m = 0; m < Layout<kDim>::kTiles; ++m) {
      multiply_add(scores[m][0], owned[m][k], right.part[0], right.part[2]);
      multiply_add(scores[m][1], owned[m][k], right.part[1], right.part[3]);
    }
  }
}

/// Calls visit(m, half, n, i) for the scores [m][n][2 * half + i] that a lane holds: in row
/// 16 m + 8 half + lane / 4 and column 8 n + i + 2 (lane % 4).
template <int kDim, class Visit>
__device__ void for_each_of_lane(const Visit& visit) {
#pragma unroll
  for (int m = 0; m < Layout<kDim>::kTiles; ++m) {
#pragma unroll
    for (int index = 0; index < kChunk / 2; ++index) {
      visit(m, index / 2 % 2, index / 4, index % 2);
    }
  }
}

/// scores += slope * (row - column) when the first row is `ahead` of the first column.
template <int kDim>
__device__ void slant(Scores<kDim>& scores, float slope, int ahead) {
  const int lane = threadIdx.x % kWarp;
  const auto distance = static_cast<float>(ahead + lane / 4 - lane % 4 * 2);
  for_each_of_lane<kDim>([&](int m, int half, int n, int i) {
    scores[m][n][2 * half + i] +=
        slope * (distance + static_cast<float>(16 * m + 8 * half - 8 * n - i));
  });
}

/// sums += scores · streamed.
template <int kDim>
__device__ void add_product(Sums<kDim>& sums, const Scores<kDim>& scores,
                            const SharedRows<kDim>& streamed) {
  constexpr int kTiles = Layout<kDim>::kTiles;
  Fragment left[kTiles];
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
    left[m] = as_left_factor(scores[m][0], scores[m][1]);
  }
#pragma unroll
  for (int n = 0; n < kDim / 16; ++n) {
    const Fragment right = streamed.load_right(0, n);
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      multiply_add(sums[m][2 * n], left[m], right.part[0], right.part[1]);
      multiply_add(sums[m][2 * n + 1], left[m], right.part[2], right.part[3]);
    }
  }
}

template <int kDim>
__device__ void store(const SharedRows<kDim>& stage, const Sums<kDim>& sums, float factor, bf16* to,
                      std::int64_t stride, int valid) {
  float factors[Layout<kDim>::kTiles][2];
  for (auto& f : factors) {
    f[0] = f[1] = factor;
  }
  store_rows<Layout<kDim>::kTiles>(stage, sums, factors, to, stride, valid);
}

/// What this lane needs of memory for the terms of its queries: a part of their out, spread like a
/// left factor, and their logsumexp. Loaded early, it arrives together with the tiles.
template <int kDim>
struct TermSource {
  static constexpr int kTiles = Layout<kDim>::kTiles;

  Owned<kDim> out;
  float logsumexp[kTiles][2];

  __device__ TermSource(const Problem<bf16>& p, int b, int h, int query) {
    const int lane = threadIdx.x % kWarp;
    const bf16* rows = p.out.head(b, h, kDim) + lane % 4 * 2;
    const float* terms = p.logsumexp + (static_cast<std::int64_t>(b) * p.heads + h) * p.queries;
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = min(query + 16 * m + 8 * half + lane / 4, p.queries - 1);
        const bf16* columns = rows + row * p.out.row_stride;
#pragma unroll
        for (int piece = 0; piece < kDim / 8; ++piece) {
          out[m][piece / 2].part[half + piece % 2 * 2] =
              *reinterpret_cast<const std::uint32_t*>(columns + 8 * piece);
        }
        logsumexp[m][half] = terms[row];
      }
    }
  }

  __device__ void finish(RowTerm (&terms)[kTiles][2], const Owned<kDim>& dout) const {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float delta = 0.0F;
#pragma unroll
        for (int piece = 0; piece < kDim / 8; ++piece) {
          const int part = half + piece % 2 * 2;
          const float2 o = unpack_bf16(out[m][piece / 2].part[part]);
          const float2 d = unpack_bf16(dout[m][piece / 2].part[part]);
          delta += o.x * d.x + o.y * d.y;
        }
        delta += __shfl_xor_sync(kAllLanes, delta, 1);
        delta += __shfl_xor_sync(kAllLanes, delta, 2);
        terms[m][half] = {logsumexp[m][half] * kLog2E, delta};
      }
    }
  }
};

/// 2^(s * scale - logsumexp), or zero for a key that is not seen: its score may exceed the
/// logsumexp, and the power overflow.
__device__ inline float probability(float s, const RowTerm& term, float scale_log2, bool seen) {
  const float p = fast_exp2(s * scale_log2 - term.x);
  return seen ? p : 0.0F;
}

template <int kDim>
__global__ void __launch_bounds__(kThreads, 2)
    query_gradient(const Problem<bf16> p, const Gradients<bf16> g, RowTerm* all_terms) {
  using L = Layout<kDim>;
  extern __shared__ __align__(1024) std::byte shared[];
  const SharedRows<kDim> queries{shared_address(shared)};
  const SharedRows<kDim> douts{queries.base + L::kOwnedBytes};
  const SharedRows<kDim> keys{douts.base + L::kOwnedBytes};  // two stages
  const SharedRows<kDim> values{keys.base + 2 * L::kStreamedBytes};

  const int tiles = (p.queries + L::kOwned - 1) / L::kOwned;
  const BlockOf block(p.heads, tiles);
  const int b = block.b;
  const int first_query = (tiles - 1 - block.tile) * L::kOwned;  // the longest first
  const int own_row = block.warp(kWarps) * L::kRows;
  const int lane = threadIdx.x % kWarp;
  const int query = first_query + own_row;
  const bf16* k = p.k.head(b, block.h, kDim);
  const bf16* v = p.v.head(b, block.h, kDim);
  const int last_key = min(first_query + L::kOwned, p.queries);
  int key = p.first_key(b, first_query) / kStreamed * kStreamed;
  const auto copy_keys = [&](int from, int stage) {
    copy_rows<kThreads, kStreamed>(keys.from(stage * kStreamed), k + from * p.k.row_stride,
                                   p.k.row_stride, last_key - from);
    copy_rows<kThreads, kStreamed>(values.from(stage * kStreamed), v + from * p.v.row_stride,
                                   p.v.row_stride, last_key - from);
  };
  copy_rows<kThreads, L::kOwned>(queries, p.q.head(b, block.h, kDim) + first_query * p.q.row_stride,
                                 p.q.row_stride, p.queries - first_query);
  copy_rows<kThreads, L::kOwned>(douts,
                                 g.dout.head(b, block.h, kDim) + first_query * g.dout.row_stride,
                                 g.dout.row_stride, p.queries - first_query);
  copy_keys(key, 0);
  const TermSource<kDim> source(p, b, block.h, query);
  finish_copies();

  Owned<kDim> q, dout;
  load_owned<kDim>(q, queries.from(own_row));
  load_owned<kDim>(dout, douts.from(own_row));
  RowTerm terms[L::kTiles][2];
  source.finish(terms, dout);
#pragma unroll
  for (int m = 0; m < L::kTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = query + 16 * m + 8 * half + lane / 4;
      if (lane % 4 == 0 && row < p.queries) {
        all_terms[(static_cast<std::int64_t>(b) * p.heads + block.h) * p.queries + row] =
            terms[m][half];
      }
    }
  }

  const KeySpan seen = KeySpan::of_any(p, b, query, L::kRows);
  const KeySpan unmasked = KeySpan::of_all(p, b, query, L::kRows);
  const float scale_log2 = p.scale * kLog2E;
  const float slope = p.slope(block.h) / p.scale;  // scores are still unscaled
  Sums<kDim> dq = {};
  // Most chunks need neither mask nor slope: they go without, in one piece that the compiler can
  // schedule as a whole.
  const auto take = [&](int from, const SharedRows<kDim>& k_chunk, const SharedRows<kDim>& v_chunk,
                        auto special) {
    constexpr bool kSpecial = decltype(special)::value;
    Scores<kDim> s = {}, dp = {};
    score<kDim>(s, q, k_chunk);
    if constexpr (kSpecial) {
      slant<kDim>(s, -slope, query - from);
    }
    const int first_column = from + lane % 4 * 2;
    for_each_of_lane<kDim>([&](int m, int half, int n, int i) {
      const int row = query + 16 * m + 8 * half + lane / 4;
      const int column = first_column + 8 * n + i;
      float& score = s[m][n][2 * half + i];
      score = probability(score, terms[m][half], scale_log2,
                          !kSpecial || (column >= p.first_key(b, row) && column <= row));
    });
    score<kDim>(dp, dout, v_chunk);
    for_each_of_lane<kDim>([&](int m, int half, int n, int i) {
      float& d = dp[m][n][2 * half + i];
      d = s[m][n][2 * half + i] * (d - terms[m][half].y);
    });
    add_product<kDim>(dq, dp, k_chunk);
  };
  for (int stage = 0; key < last_key; key += kStreamed, stage ^= 1) {
    if (key + kStreamed < last_key) {
      copy_keys(key + kStreamed, stage ^ 1);
    }
#pragma unroll 1
    for (int i = 0; i < kStreamed; i += kChunk) {
      if (!seen.meets(key + i, kChunk)) {
        continue;
      }
      const int row = stage * kStreamed + i;
      if (unmasked.holds(key + i, kChunk) && slope == 0.0F) {
        take(key + i, keys.from(row), values.from(row), std::false_type{});
      } else {
        take(key + i, keys.from(row), values.from(row), std::true_type{});
      }
    }
    finish_copies();
  }
  store<kDim>(queries.from(own_row), dq, p.scale,
              g.dq.head(b, block.h, kDim) + query * g.dq.row_stride, g.dq.row_stride,
              p.queries - query);
}

/// How many tiles of queries from `first_query` on see a key before `last_key`. Documents are in
/// order, so these come first.
template <class T>
__device__ int count_seeing_tiles(const Problem<T>& p, int b, int first_query, int last_key) {
  const int tiles = (p.queries - first_query + kStreamed - 1) / kStreamed;
  if (p.document_start == nullptr) {
    return tiles;
  }
  int count = 0;
  for (int tile = 0; tile < tiles; tile += kThreads) {
    const int mine = tile + static_cast<int>(threadIdx.x);
    count += __syncthreads_count(mine < tiles &&
                                 p.first_key(b, first_query + mine * kStreamed) < last_key);
  }
  return count;
}

template <int kDim>
__global__ void __launch_bounds__(kThreads, 2)
    key_gradient(const Problem<bf16> p, const Gradients<bf16> g, const RowTerm* all_terms) {
  using L = Layout<kDim>;
  extern __shared__ __align__(1024) std::byte shared[];
  const SharedRows<kDim> keys{shared_address(shared)};
  const SharedRows<kDim> values{keys.base + L::kOwnedBytes};
  const SharedRows<kDim> queries{values.base + L::kOwnedBytes};  // two stages
  const SharedRows<kDim> douts{queries.base + 2 * L::kStreamedBytes};
  auto* const terms = reinterpret_cast<RowTerm*>(shared + L::kBytes);  // two stages

  const BlockOf block(p.heads, (p.queries + L::kOwned - 1) / L::kOwned);
  const int b = block.b;
  const int first_key = block.tile * L::kOwned;  // the first are seen by the most queries
  const int own_row = block.warp(kWarps) * L::kRows;
  const int lane = threadIdx.x % kWarp;
  const int key = first_key + own_row;
  const bf16* q = p.q.head(b, block.h, kDim);
  const bf16* dout = g.dout.head(b, block.h, kDim);
  const RowTerm* row_terms =
      all_terms + (static_cast<std::int64_t>(b) * p.heads + block.h) * p.queries;
  const auto copy_queries = [&](int from, int stage) {
    const int valid = p.queries - from;
    copy_rows<kThreads, kStreamed>(queries.from(stage * kStreamed), q + from * p.q.row_stride,
                                   p.q.row_stride, valid);
    copy_rows<kThreads, kStreamed>(douts.from(stage * kStreamed), dout + from * g.dout.row_stride,
                                   g.dout.row_stride, valid);
    // Queries past the last get zeros everywhere, which adds nothing to any sum.
    const int row = threadIdx.x;
    if (row < kStreamed) {
      copy_8_bytes(shared_address(terms + stage * kStreamed + row),
                   row_terms + (row < valid ? from + row : 0), row < valid);
    }
  };
  copy_rows<kThreads, L::kOwned>(keys, p.k.head(b, block.h, kDim) + first_key * p.k.row_stride,
                                 p.k.row_stride, p.queries - first_key);
  copy_rows<kThreads, L::kOwned>(values, p.v.head(b, block.h, kDim) + first_key * p.v.row_stride,
                                 p.v.row_stride, p.queries - first_key);
  copy_queries(first_key, 0);
  const int last_query =
      first_key + kStreamed * count_seeing_tiles(p, b, first_key, first_key + L::kOwned);
  finish_copies();

  Owned<kDim> k, v;
  load_owned<kDim>(k, keys.from(own_row));
  load_owned<kDim>(v, values.from(own_row));
  const float scale_log2 = p.scale * kLog2E;
  const float slope = p.slope(block.h) / p.scale;  // scores are still unscaled
  Sums<kDim> dk = {}, dv = {};
  // Scores are transposed here: rows are keys, columns are queries.
  const auto take = [&](int from, int row, auto special) {
    constexpr bool kSpecial = decltype(special)::value;
    const SharedRows<kDim> q_chunk = queries.from(row);
    const SharedRows<kDim> dout_chunk = douts.from(row);
    RowTerm term[kChunk / 8][2];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      term[i / 2][i % 2] = terms[row + i / 2 * 8 + i % 2 + lane % 4 * 2];
    }
    Scores<kDim> s = {}, dp = {};
    score<kDim>(s, k, q_chunk);
    if constexpr (kSpecial) {
      slant<kDim>(s, slope, key - from);
    }
    const int first_column = from + lane % 4 * 2;
    for_each_of_lane<kDim>([&](int m, int half, int n, int i) {
      const int own = key + 16 * m + 8 * half + lane / 4;
      const int column = first_column + 8 * n + i;
      float& score = s[m][n][2 * half + i];
      score = probability(score, term[n][i], scale_log2,
                          !kSpecial || (own >= p.first_key(b, column) && own <= column));
    });
    score<kDim>(dp, v, dout_chunk);
    add_product<kDim>(dv, s, dout_chunk);
    for_each_of_lane<kDim>([&](int m, int half, int n, int i) {
      float& d = dp[m][n][2 * half + i];
      d = s[m][n][2 * half + i] * (d - term[n][i].y);
    });
    add_product<kDim>(dk, dp, q_chunk);
  };
  for (int stage = 0, query = first_key; query < last_query; query += kStreamed, stage ^= 1) {
    if (query + kStreamed < last_query) {
      copy_queries(query + kStreamed, stage ^ 1);
    }
    const bool special = slope != 0.0F || p.first_key(b, query + kStreamed - 1) > key;
#pragma unroll 1
    for (int i = 0; i < kStreamed; i += kChunk) {
      if (query + i + kChunk <= key) {
        continue;  // all before this warp's keys
      }
      if (query + i >= key + L::kRows - 1 && !special) {
        take(query + i, stage * kStreamed + i, std::false_type{});
      } else {
        take(query + i, stage * kStreamed + i, std::true_type{});
      }
    }
    finish_copies();
  }
  const int valid = p.queries - key;
  store<kDim>(keys.from(own_row), dk, p.scale, g.dk.head(b, block.h, kDim) + key * g.dk.row_stride,
              g.dk.row_stride, valid);
  store<kDim>(values.from(own_row), dv, 1.0F, g.dv.head(b, block.h, kDim) + key * g.dv.row_stride,
              g.dv.row_stride, valid);
}

template <int kDim>
void launch_backward(Context& ctx, const Problem<bf16>& p, const Gradients<bf16>& g) {
  using L = Layout<kDim>;
  const std::int64_t heads = static_cast<std::int64_t>(p.batch) * p.heads;
  const std::int64_t blocks = heads * ceil_div(p.queries, L::kOwned);
  auto* terms = static_cast<RowTerm*>(ctx.scratch({{heads, p.queries, 2}, DType::kF32}).raw());
  const cudaStream_t stream = stream_of(ctx);
  launch(query_gradient<kDim>, blocks, kThreads, L::kBytes, stream, p, g, terms);
  launch(key_gradient<kDim>, blocks, kThreads, L::kBytes + 2 * L::kTermBytes, stream, p, g,
         static_cast<const RowTerm*>(terms));
}

void backward(Context& ctx, const Problem<bf16>& p, const Gradients<bf16>& g) {
  if (!suits_tensor_cores(p, g)) {
    plain_backward(ctx, p, g);
  } else if (hopper_serves_backward(p, g)) {
    hopper_backward(ctx, p, g);
  } else if (p.dim == 32) {
    launch_backward<32>(ctx, p, g);
  } else if (p.dim == 64) {
    launch_backward<64>(ctx, p, g);
  } else {
    launch_backward<128>(ctx, p, g);
  }
}

void backward(Context& ctx, const Problem<float>& p, const Gradients<float>& g) {
  plain_backward(ctx, p, g);
}

}  // namespace

void attention_backward(Context& ctx, const Attention& attention, const Sequence& seq,
                        const AttentionBackward& args) {
  visit_float(args.qkv.dtype(), [&](auto type) {
    using T = decltype(type);
    backward(ctx, problem_of<T>(attention, seq, args), gradients_of<T>(seq, args));
  });
}

}  // namespace carope::cuda::tiled
