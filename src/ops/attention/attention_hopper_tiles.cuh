#pragma once

#include "ops/attention/attention_through.cuh"

// How the backward pass of attention on Hopper is spread over a block: what is in shared memory,
// and in which order tiles pass through it.
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
/// Registers of a thread. Those of three groups must not exceed 504 together.
inline constexpr int kConsumerRegisters = 224;
inline constexpr int kProducerRegisters = 56;

using Rows64 = SharedRows<kDim>;
using TileBytes = std::byte[kTileBytes];

struct alignas(1024) SharedMemory {
  /// Of this block of keys and the next. After a group's own tile they give place to its torque.
  TileBytes keys[2][kGroups];
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
  GateStage gates;
  std::uint64_t filled[kStages], free[kStages], keys_free[2], values_free;
  std::uint64_t landed[kStages];           // dout, in a head's first round
  std::uint64_t torque_there[2][kGroups];  // in the place of keys_free
};
static_assert(sizeof(SharedMemory) <= 227 * 1024);  // what Hopper lends a block

__device__ inline SharedBarrier barrier_at(const std::uint64_t& barrier) {
  return {shared_address(&barrier)};
}

/// Barriers of the block, one for each group that adds dq: a tile's score gradients are there for
/// it; it has read them, and the other group may replace its own.
__device__ inline int written_for(int group) { return 1 + group; }
__device__ inline int read_by(int group) { return 1 + kGroups + group; }
/// And one within each group, the copying one being number kGroups.
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

/// Every thread arrives for itself: one that arrived for its warp would hide the others from tools
/// that look for races.
__device__ inline void init_barriers(SharedMemory& shared) {
  for (int i = 0; i < kStages; ++i) {
    barrier_at(shared.filled[i]).init(kGroupThreads + 1);  // and the one that starts the copies
    barrier_at(shared.landed[i]).init(1);
    barrier_at(shared.free[i]).init(kConsumers);
  }
  for (const std::uint64_t& barrier : shared.keys_free) {
    barrier_at(barrier).init(kConsumers);
  }
  barrier_at(shared.values_free).init(kConsumers);
  for (const auto& of_block : shared.torque_there) {
    for (const std::uint64_t& barrier : of_block) {
      barrier_at(barrier).init(kGroupThreads);
    }
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
