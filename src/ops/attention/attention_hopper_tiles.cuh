#pragma once

#include "ops/attention/attention_through.cuh"

// How the backward pass of attention on Hopper is spread over a block: what is in shared memory, in
// which order tiles pass through it, and the group of threads that brings them.
namespace carope::cuda::tiled {

inline constexpr int kDim = 64;
inline constexpr int kTile = 64;  // queries taken at once, and keys of a warpgroup
inline constexpr int kTileBytes = kTile * kDim * static_cast<int>(sizeof(bf16));
inline constexpr int kGroups = 2;
inline constexpr int kConsumers = kGroups * kGroupThreads;
inline constexpr int kConsumerWarps = kConsumers / kWarp;
inline constexpr int kThreads = kConsumers + kGroupThreads;  // a third group copies
inline constexpr int kStages = 3;
inline constexpr int kMaxTiles = 8;
/// A copying thread moves one of a row's eight 16-byte pieces, of every 16th row.
inline constexpr int kPieces = 8;
inline constexpr int kCopyStep = kGroupThreads / kPieces;
inline constexpr int kCopies = kTile / kCopyStep;
static_assert(kCopyStep % 8 == 0);  // so the permutation stays the same
/// Registers of a thread. Those of three groups must not exceed 504 together.
inline constexpr int kConsumerRegisters = 224;
inline constexpr int kProducerRegisters = 56;

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
  WarpStage staged[kConsumerWarps];
  std::uint64_t filled[kStages], free[kStages], keys_free[2], values_free;
};
static_assert(sizeof(SharedMemory) <= 227 * 1024);  // what Hopper lends a block

__device__ inline SharedBarrier barrier_at(const std::uint64_t& barrier) {
  return {shared_address(&barrier)};
}

/// Barriers of the block, one for each group that adds dq: a tile's score gradients are there for
/// it; it has read them, and the other group may replace its own.
__device__ inline int written_for(int group) { return 1 + group; }
__device__ inline int read_by(int group) { return 1 + kGroups + group; }
/// And one within each group.
__device__ inline int within(int group) { return 1 + 2 * kGroups + group; }

/// The order in which tiles are brought and taken: of each head, of each block of keys, from the
/// last that sees them to the block's own.
struct Place {
  int head, block, tile;

  __device__ void advance(int tiles) {
    if (tile-- == kGroups * block) {
      tile = tiles - 1;
      if (kGroups * ++block == tiles) {
        head += gridDim.x;
        block = 0;
      }
    }
  }
};

template <class T>
__device__ T* tile_of(const Rows<T>& rows, const Problem<bf16>& p, int head, int tile) {
  return rows.head(head / p.heads, head % p.heads, kDim) + tile * kTile * rows.row_stride;
}

__device__ inline void copy_tile(const TileBytes& to, const bf16* from, std::int64_t stride) {
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

__device__ inline float dot(const uint4& a, const uint4& b) {
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

/// Every thread arrives for itself: one that arrived for its warp would hide the others from tools
/// that look for races.
__device__ inline void init_barriers(SharedMemory& shared) {
  for (int i = 0; i < kStages; ++i) {
    barrier_at(shared.filled[i]).init(kGroupThreads);
    barrier_at(shared.free[i]).init(kConsumers);
  }
  for (const std::uint64_t& barrier : shared.keys_free) {
    barrier_at(barrier).init(kConsumers);
  }
  barrier_at(shared.values_free).init(kConsumers);
}

/// The copying group: starts the copies of a tile, then waits for those of the tile before.
template <class Way>
__device__ void produce(const Problem<bf16>& p, const Gradients<bf16>& g, const Input& input,
                        SharedMemory& shared) {
  const int tiles = p.queries / kTile;
  const int heads = p.batch * p.heads;
  TileTerms terms;
  Place now{static_cast<int>(blockIdx.x), 0, tiles - 1}, last{};
  int blocks = 0;
  for (int n = 0;; ++n) {
    const bool more = now.head < heads;
    if (more) {
      if (now.tile == tiles - 1) {
        const int own = kGroups * now.block;
        barrier_at(shared.keys_free[blocks % 2]).wait(blocks / 2 - 1);
        barrier_at(shared.values_free).wait(blocks - 1);
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
          copy_tile(shared.keys[blocks % 2][group], tile_of(p.k, p, now.head, own + group),
                    p.k.row_stride);
          copy_tile(shared.values[group], tile_of(p.v, p, now.head, own + group), p.v.row_stride);
        }
        if constexpr (Way::kTurn == Turn::kPhases) {
          static_assert(kGroups * kTile == kGroupThreads);  // a thread for each token
          prefetch_l2(pairs_of(input.phases, p, now.head,
                               own * kTile + static_cast<int>(threadIdx.x) % kGroupThreads));
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

/// Sums that wait in shared memory, where each thread reads what it wrote, and each warp has a
/// quarter.
__device__ inline void keep(const GroupSums& sums, float4* kept) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    kept[i * kWarp] = {sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]};
  }
}
__device__ inline void add_kept(GroupSums& sums, const float4* kept) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float4 four = kept[i * kWarp];
    sums[4 * i] += four.x;
    sums[4 * i + 1] += four.y;
    sums[4 * i + 2] += four.z;
    sums[4 * i + 3] += four.w;
  }
}

__device__ inline void scale_by(GroupSums& sums, float factor) {
#pragma unroll
  for (float& sum : sums) {
    sum *= factor;
  }
}

/// Writes the sums that a group's warps have of the columns of a head.
__device__ inline void write_shares(const Problem<bf16>& p, const SharedMemory& shared,
                                    float* shares, int group, int head) {
  wait_at<kGroupThreads>(within(group));
  const std::int64_t first = (head / p.heads * kGroups + group) * 3 * p.heads + head % p.heads;
  for (int i = threadIdx.x % kGroupThreads; i < 3 * kDim; i += kGroupThreads) {
    const int part = i / kDim;
    const int column = i % kDim;
    float sum = 0.0F;
#pragma unroll
    for (int warp = 0; warp < kConsumerWarps / kGroups; ++warp) {
      sum += shared.staged[group * kConsumerWarps / kGroups + warp].sums[part][column];
    }
    shares[(first + part * p.heads) * kDim + column] = sum;
  }
}

}  // namespace carope::cuda::tiled
