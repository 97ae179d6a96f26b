#include "ops/attention_problem.cuh"
#include "ops/warpgroup.cuh"

// The backward pass of causal attention over short sequences, on Hopper. A block takes whole heads,
// one after another, and loops over blocks of keys and, inside, over the tiles of queries that see
// them. Each of its two warpgroups owns the gradients of half of the keys, in registers; scores are
// transposed (rows are keys), so that probabilities and score gradients are left factors without
// leaving the registers. Only dq needs both halves: score gradients meet in shared memory, and the
// groups take turns in adding a tile's dq, which waits in shared memory between blocks of keys.
// A third group brings the tiles. All sums have a fixed order.
namespace carope::cuda::tiled {
namespace {

constexpr int kDim = 64;
constexpr int kTile = 64;  // queries taken at once, and keys of a warpgroup
constexpr int kTileBytes = kTile * kDim * static_cast<int>(sizeof(bf16));
constexpr int kGroups = 2;
constexpr int kConsumers = kGroups * kGroupThreads;
constexpr int kConsumerWarps = kConsumers / kWarp;
constexpr int kThreads = kConsumers + kGroupThreads;  // a third group copies
constexpr int kStages = 3;
constexpr int kMaxTiles = 8;
/// A copying thread moves one of a row's eight 16-byte pieces, of every 16th row.
constexpr int kPieces = 8;
constexpr int kCopyStep = kGroupThreads / kPieces;
constexpr int kCopies = kTile / kCopyStep;
static_assert(kCopyStep % 8 == 0);  // so the permutation stays the same
/// Registers of a thread. Those of three groups must not exceed 504 together.
constexpr int kConsumerRegisters = 224;
constexpr int kProducerRegisters = 56;

using Rows64 = SharedRows<kDim>;
using TileBytes = std::byte[kTileBytes];

struct alignas(1024) SharedMemory {
  TileBytes keys[2][kGroups];  // of this block of keys and the next
  TileBytes values[kGroups];
  TileBytes queries[kStages];
  TileBytes douts[kStages];
  TileBytes score_gradients[kGroups];  // [keys, queries]
  /// dq of the tiles that more than one block of keys adds to: all but the first two.
  float4 query_gradients[kMaxTiles - 2][kTile * kDim / 4];
  float logsumexp[kStages][kTile];  // times log2(e)
  float delta[kStages][kTile];      // Σ_d out · dout
  float all_deltas[kMaxTiles * kTile];
  std::uint64_t filled[kStages], free[kStages], keys_free[2], values_free;
};

__device__ SharedBarrier barrier_at(const std::uint64_t& barrier) {
  return {shared_address(&barrier)};
}

/// Barriers of the block, one for each group that adds dq: a tile's score gradients are there for
/// it; it has read them, and the other group may replace its own.
__device__ int written_for(int group) { return 1 + group; }
__device__ int read_by(int group) { return 1 + kGroups + group; }
/// And one within each group.
__device__ int within(int group) { return 1 + 2 * kGroups + group; }

/// The order in which tiles are brought and taken: of each head, of each block of keys.
struct Place {
  int head, block, tile;

  __device__ bool begins_block() const { return tile == kGroups * block; }
  __device__ void advance(int tiles) {
    if (++tile == tiles) {
      tile = kGroups * ++block;
      if (tile == tiles) {
        head += gridDim.x;
        block = tile = 0;
      }
    }
  }
};

template <class T>
__device__ T* tile_of(const Rows<T>& rows, const Problem<bf16>& p, int head, int tile) {
  return rows.head(head / p.heads, head % p.heads, kDim) + tile * kTile * rows.row_stride;
}

__device__ void copy_tile(const TileBytes& to, const bf16* from, std::int64_t stride) {
  const int row = threadIdx.x % kGroupThreads / kPieces;
  const int piece = threadIdx.x % kPieces;
  const std::uint32_t target = Rows64{shared_address(to)}.at(row, piece);
  const bf16* source = from + row * stride + piece * 8;
#pragma unroll
  for (int i = 0; i < kCopies; ++i) {
    copy_16_bytes(target + i * kCopyStep * Rows64::kRowBytes, source + i * kCopyStep * stride,
                  true);
  }
}

__device__ float dot(const uint4& a, const uint4& b) {
  const std::uint32_t left[4] = {a.x, a.y, a.z, a.w};
  const std::uint32_t right[4] = {b.x, b.y, b.z, b.w};
  float sum = 0.0F;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 l = unpack_bf16(left[i]);
    const float2 r = unpack_bf16(right[i]);
    sum += l.x * r.x + l.y * r.y;
  }
  return sum;
}

/// What a copying thread has in registers of a tile whose other parts are on their way to shared
/// memory: its pieces of out, if the terms have yet to be computed, and its rows' logsumexp. One of
/// the threads that share a row keeps its terms.
struct TileTerms {
  uint4 out[kCopies];
  float logsumexp[kCopies];

  __device__ void load(const Problem<bf16>& p, const Place& at) {
    const int row = threadIdx.x % kGroupThreads / kPieces;
    const int piece = threadIdx.x % kPieces;
    const bf16* rows = tile_of(p.out, p, at.head, at.tile) + row * p.out.row_stride + piece * 8;
    const float* terms =
        p.logsumexp + static_cast<std::int64_t>(at.head) * p.queries + at.tile * kTile + row;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      if (at.block == 0) {
        out[i] = *reinterpret_cast<const uint4*>(rows + i * kCopyStep * p.out.row_stride);
      }
      logsumexp[i] = terms[i * kCopyStep];
    }
  }

  __device__ void finish(SharedMemory& shared, const Place& at, int stage) const {
    const int row = threadIdx.x % kGroupThreads / kPieces;
    const int piece = threadIdx.x % kPieces;
    const std::byte* dout =
        shared.douts[stage] + row * Rows64::kRowBytes + (piece ^ row % 8) * sizeof(uint4);
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      float& kept = shared.all_deltas[at.tile * kTile + row + i * kCopyStep];
      float delta = 0.0F;
      if (at.block == 0) {
        delta =
            dot(out[i], *reinterpret_cast<const uint4*>(dout + i * kCopyStep * Rows64::kRowBytes));
#pragma unroll
        for (int step = 1; step < kPieces; step *= 2) {
          delta += __shfl_xor_sync(kAllLanes, delta, step);
        }
      }
      if (piece == 0) {
        if (at.block == 0) {
          kept = delta;
        }
        shared.delta[stage][row + i * kCopyStep] = kept;
        shared.logsumexp[stage][row + i * kCopyStep] = logsumexp[i] * kLog2E;
      }
    }
  }
};

/// The copying group: starts the copies of a tile, then waits for those of the tile before.
__device__ void produce(const Problem<bf16>& p, const Gradients<bf16>& g, SharedMemory& shared) {
  const int tiles = p.queries / kTile;
  const int heads = p.batch * p.heads;
  TileTerms terms;
  Place now{static_cast<int>(blockIdx.x), 0, 0}, last{};
  int blocks = 0;
  for (int n = 0;; ++n) {
    const bool more = now.head < heads;
    if (more) {
      if (now.begins_block()) {
        barrier_at(shared.keys_free[blocks % 2]).wait(blocks / 2 - 1);
        barrier_at(shared.values_free).wait(blocks - 1);
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
          copy_tile(shared.keys[blocks % 2][group], tile_of(p.k, p, now.head, now.tile + group),
                    p.k.row_stride);
          copy_tile(shared.values[group], tile_of(p.v, p, now.head, now.tile + group),
                    p.v.row_stride);
        }
        ++blocks;
      }
      const int stage = n % kStages;
      barrier_at(shared.free[stage]).wait(n / kStages - 1);
      copy_tile(shared.queries[stage], tile_of(p.q, p, now.head, now.tile), p.q.row_stride);
      copy_tile(shared.douts[stage], tile_of(g.dout, p, now.head, now.tile), g.dout.row_stride);
    }
    close_copies();
    if (n > 0) {
      wait_for_copies<1>();
      terms.finish(shared, last, (n - 1) % kStages);
      publish_to_products();
      barrier_at(shared.filled[(n - 1) % kStages]).arrive();
    }
    if (!more) {
      return;
    }
    terms.load(p, now);
    last = now;
    now.advance(tiles);
  }
}

/// Sums that wait in shared memory, where each thread reads what it wrote.
__device__ void keep(const GroupSums& sums, float4* kept) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    kept[i * kGroupThreads] = {sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]};
  }
}
__device__ void add_kept(GroupSums& sums, const float4* kept) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float4 four = kept[i * kGroupThreads];
    sums[4 * i] += four.x;
    sums[4 * i + 1] += four.y;
    sums[4 * i + 2] += four.z;
    sums[4 * i + 3] += four.w;
  }
}

/// A warpgroup's part: the keys it owns, and dq of every other tile.
__device__ void consume(const Problem<bf16>& p, const Gradients<bf16>& g, SharedMemory& shared,
                        int group) {
  const int warp = threadIdx.x % kGroupThreads / kWarp;
  const int lane = threadIdx.x % kWarp;
  const int tiles = p.queries / kTile;
  const int heads = p.batch * p.heads;
  const float scale_log2 = p.scale * kLog2E;
  const int first_column = lane % 4 * 2;
  const Rows64 own_gradients{shared_address(shared.score_gradients[group])};
  const auto free = [&](const std::uint64_t& barrier) {
    __syncwarp();
    if (lane == 0) {
      barrier_at(barrier).arrive();
    }
  };

  if (group == 1) {
    pass_by<kConsumers>(read_by(1));  // so that the first tile's score gradients may be written
  }
  int n = 0;
  int blocks = 0;
  for (int head = blockIdx.x; head < heads; head += gridDim.x) {
    for (int block = 0; kGroups * block < tiles; ++block, ++blocks) {
      const auto& keys = shared.keys[blocks % 2];
      const int diagonal = kGroups * block + group;  // the first tile that sees the group's keys
      GroupFactor k, v;
      barrier_at(shared.filled[n % kStages]).wait(n / kStages);
      load_left_factor(k, Rows64{shared_address(keys[group])});
      load_left_factor(v, Rows64{shared_address(shared.values[group])});
      free(shared.values_free);
      if (group == 1) {
        pass_by<kConsumers>(written_for(0));
        free(shared.free[n % kStages]);
        ++n;
        barrier_at(shared.filled[n % kStages]).wait(n / kStages);
      }

      GroupSums dk = {}, dv = {}, s;
      const auto start_scores = [&](int stage) {
        begin_products();
        start_product<false>(
            s, k, SharedFactor::along_result(shared_address(shared.queries[stage])), false);
        close_products();
      };
      start_scores(n % kStages);
      wait_for_products<0>();
      settle(s);
      for (int tile = diagonal; tile < tiles; ++tile, ++n) {
        const int stage = n % kStages;
        const std::uint32_t queries = shared_address(shared.queries[stage]);
        const std::uint32_t douts = shared_address(shared.douts[stage]);
        GroupSums dp;
        begin_products();
        start_product<false>(dp, v, SharedFactor::along_result(douts), false);
        close_products();
        if (tile == diagonal) {
          for_each_sum([&](int n, int half, int i) {
            if (16 * warp + 8 * half + lane / 4 > 8 * n + first_column + i) {
              s[4 * n + 2 * half + i] = kNegativeInfinity;
            }
          });
        }
        for_each_sum([&](int n, int half, int i) {
          float& x = s[4 * n + 2 * half + i];
          x = fast_exp2(x * scale_log2 - shared.logsumexp[stage][8 * n + first_column + i]);
        });
        GroupFactor probabilities;
        as_left_factor(probabilities, s);
        begin_products();
        start_product<true>(dv, probabilities, SharedFactor::along_sum(douts), true);
        close_products();
        wait_for_products<1>();
        settle(dp);
        for_each_sum([&](int n, int half, int i) {
          float& x = dp[4 * n + 2 * half + i];
          x = s[4 * n + 2 * half + i] * (x - shared.delta[stage][8 * n + first_column + i]);
        });
        GroupFactor gradients;
        as_left_factor(gradients, dp);
        begin_products();
        start_product<true>(dk, gradients, SharedFactor::along_sum(queries), true);
        close_products();

        const bool adds_dq = tile % kGroups == group;
        // All warps that read the score gradients of the tile before must be done with them.
        if (adds_dq) {
          wait_at<kConsumers>(read_by(1 - group));
        } else {
          wait_at<kGroupThreads>(within(group));
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          store_fragment(own_gradients.at(16 * warp + lane % 16, 2 * i + lane / 16), gradients[i]);
        }
        publish_to_products();
        // The next tile's scores are computed while this one's dq is put away.
        const auto start_next_and_wait_for_others = [&] {
          if (tile + 1 < tiles) {
            barrier_at(shared.filled[(n + 1) % kStages]).wait((n + 1) / kStages);
            start_scores((n + 1) % kStages);
            wait_for_products<1>();
          } else {
            wait_for_products<0>();
          }
        };
        if (!adds_dq) {
          pass_by<kConsumers>(written_for(1 - group));
          start_next_and_wait_for_others();
          free(shared.free[stage]);
        } else {
          GroupSums dq;
          const auto start = [&](int part) {
            start_product<true, true>(
                dq, SharedFactor::along_sum(shared_address(shared.score_gradients[part])),
                SharedFactor::along_sum(shared_address(keys[part])), part > 0);
          };
          wait_at<kConsumers>(written_for(group));
          if (tile > kGroups * block) {
            begin_products();
            start(0);
            start(1);
            close_products();
          } else {
            begin_products();
            start(0);
            close_products();
          }
          start_next_and_wait_for_others();
          settle(dq);
          pass_by<kConsumers>(read_by(group));
          free(shared.free[stage]);
          float4* const kept =
              shared.query_gradients[max(tile - kGroups, 0)] + threadIdx.x % kGroupThreads;
          if (block > 0) {
            add_kept(dq, kept);
          }
          if (tile / kGroups == block) {
            store_tile(dq, p.scale, tile_of(g.dq, p, head, tile), g.dq.row_stride);
          } else {
            keep(dq, kept);
          }
        }
        wait_for_products<0>();
        settle(s);
        settle(dk);
        settle(dv);
      }
      free(shared.keys_free[blocks % 2]);
      store_tile(dk, p.scale, tile_of(g.dk, p, head, diagonal), g.dk.row_stride);
      store_tile(dv, 1.0F, tile_of(g.dv, p, head, diagonal), g.dv.row_stride);
    }
  }
  if (group == 0) {
    wait_at<kConsumers>(read_by(1));
  }
}

__device__ void init_barriers(SharedMemory& shared) {
  for (int i = 0; i < kStages; ++i) {
    barrier_at(shared.filled[i]).init(kGroupThreads);
    barrier_at(shared.free[i]).init(kConsumerWarps);
  }
  for (const std::uint64_t& barrier : shared.keys_free) {
    barrier_at(barrier).init(kConsumerWarps);
  }
  barrier_at(shared.values_free).init(kConsumerWarps);
}

/// Elsewhere than on Hopper an empty kernel, which does not take blocks of this size.
__global__ void __launch_bounds__(kHopper ? kThreads : kWarp, 1)
    all_gradients(const Problem<bf16> p, const Gradients<bf16> g) {
  if constexpr (kHopper) {
    extern __shared__ __align__(1024) std::byte memory[];
    SharedMemory& shared = *reinterpret_cast<SharedMemory*>(memory);
    if (threadIdx.x == 0) {
      init_barriers(shared);
    }
    __syncthreads();
    // The same in all lanes, which the compiler must know.
    const int group = __shfl_sync(kAllLanes, threadIdx.x / kGroupThreads, 0);
    if (group < kGroups) {
      take_registers<kConsumerRegisters>();
      consume(p, g, shared, group);
    } else {
      leave_registers<kProducerRegisters>();
      produce(p, g, shared);
    }
  }
}

bool is_served(const Problem<bf16>& p) {
  return p.dim == kDim && p.offset == 0 && p.document_start == nullptr && p.slopes == nullptr &&
         p.queries > 0 && p.queries % (kGroups * kTile) == 0 && p.queries <= kMaxTiles * kTile;
}

}  // namespace

bool hopper_backward(Context& ctx, const Problem<bf16>& p, const Gradients<bf16>& g) {
  if (!is_served(p)) {
    return false;
  }
  cudaFuncAttributes compiled{};
  CUDA_CHECK(cudaFuncGetAttributes(&compiled, all_gradients));
  if (compiled.maxThreadsPerBlock < kThreads) {
    return false;
  }
  launch(all_gradients, std::min(multiprocessors(ctx), p.batch * p.heads), kThreads,
         sizeof(SharedMemory), stream_of(ctx), p, g);
  return true;
}

}  // namespace carope::cuda::tiled
