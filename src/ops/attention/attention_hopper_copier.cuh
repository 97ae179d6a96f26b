#pragma once

#include "ops/attention/attention_hopper_gate.cuh"
#include "ops/cuda/tensor_copy.cuh"

// The group of threads that brings tiles to a backward pass of attention on Hopper, and, while the
// others work on these, makes gate gradients of what they leave. One thread starts all copies, and
// nobody waits for them but the others; only in a head's first round, in which Σ_d out · dout is
// computed and kept, must dout have come. A tile is handed over before anything else is done, so
// that the others have all that there is room for meanwhile.
namespace carope::cuda::tiled {

/// What tiles are copied from, as the copy engine knows it.
struct Matrices {
  CUtensorMap qkv;   // [B T, 3C]
  CUtensorMap dout;  // [B T, C]
};

/// A thread of the group.
class Copier {
 public:
  __device__ Copier(const Problem<bf16>& p, const Matrices& from, SharedMemory& shared)
      : p_(p), from_(from), shared_(shared) {}

  /// Turns to a head.
  __device__ void seek(int head) {
    first_row_ = head / p_.heads * p_.queries;
    column_ = head % p_.heads * kDim;
    const float* const from =
        p_.logsumexp + static_cast<std::int64_t>(head) * p_.queries + read_thread();
    const auto share = [&](int i) {
      return i * kGroupThreads < p_.queries ? from[i * kGroupThreads] : 0.0F;
    };
    static_assert(kMaxTiles == 4 * kTilesEach);
    logsumexp_ = {share(0), share(1), share(2), share(3)};
  }

  /// Has a tile that a head's first round needs brought into the L2 cache.
  __device__ void expect(int head, int tile) const {
    const int row = head / p_.heads * p_.queries + tile * kTile;
    const int column = head % p_.heads * kDim;
    const int thread = read_thread();
    if (thread == kStarter) {
      prefetch_tile(from_.qkv, row, column);
      prefetch_tile(from_.dout, row, column);
    }
    if (thread >= kTile) {
      prefetch_l2(p_.out.data + (row + thread - kTile) * p_.out.row_stride + column);
    }
  }

  /// Starts the copies of a tile of queries and what goes with them. `keys`: whether start_keys()
  /// follows.
  __device__ void start(int block, int tile, int stage, bool keys) const {
    if (read_thread() == kStarter) {
      const SharedBarrier filled = barrier_at(shared_.filled[stage]);
      const SharedBarrier landed = barrier_at(shared_.landed[stage]);
      const int row = first_row_ + tile * kTile;
      if (block == 0) {
        arrive_expecting(landed, kTileBytes);
      }
      arrive_expecting(filled, ((block == 0 ? 1 : 2) + (keys ? 2 * kGroups : 0)) * kTileBytes);
      load_tile(shared_address(shared_.queries[stage]), from_.qkv, row, column_, filled);
      load_tile(shared_address(shared_.douts[stage]), from_.dout, row, column_,
                block == 0 ? landed : filled);
    }
  }

  /// And of the keys and values of a block's groups.
  __device__ void start_keys(int block, TileBytes (&keys)[kGroups], int stage) const {
    if (read_thread() == kStarter) {
      const SharedBarrier filled = barrier_at(shared_.filled[stage]);
      const int width = p_.heads * kDim;
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        const int row = first_row_ + (kGroups * block + group) * kTile;
        load_tile(shared_address(keys[group]), from_.qkv, row, column_ + width, filled);
        load_tile(shared_address(shared_.values[group]), from_.qkv, row, column_ + 2 * width,
                  filled);
      }
    }
  }

  /// Adds a tile's terms and hands it over.
  __device__ void hand_over(int block, int tile, int stage) {
    const int thread = read_thread();
    if (block == 0) {
      uint4 out[kPiecesEach];
      const std::int64_t stride = p_.out.row_stride;
      const bf16* const from =
          p_.out.data + (first_row_ + tile * kTile + row()) * stride + column_ + piece() * 8;
#pragma unroll
      for (int i = 0; i < kPiecesEach; ++i) {
        out[i] = __ldcs(reinterpret_cast<const uint4*>(from + i * kStep * stride));
      }
      barrier_at(shared_.landed[stage]).wait(static_cast<int>(landings_ >> stage & 1));
      landings_ ^= 1U << stage;
      const float delta = own_delta(out, shared_.douts[stage]);
      if (piece() < kPiecesEach) {
        shared_.all_deltas[tile * kTile + own_row()] = delta;
        shared_.delta[stage][own_row()] = delta;
      }
    } else if (piece() < kPiecesEach) {
      shared_.delta[stage][own_row()] = shared_.all_deltas[tile * kTile + own_row()];
    }
    if (thread / kTile == tile % kTilesEach) {
      const int share = tile / kTilesEach;
      const float own = share < 2 ? (share == 0 ? logsumexp_.x : logsumexp_.y)
                                  : (share == 2 ? logsumexp_.z : logsumexp_.w);
      shared_.logsumexp[stage][thread % kTile] = own * kLog2E;
    }
    barrier_at(shared_.filled[stage]).arrive();
  }

 private:
  static constexpr int kStarter = 0;  // of the group's threads
  /// Of a head's logsumexp a thread has every 128th, for every other tile.
  static constexpr int kTilesEach = kGroupThreads / kTile;
  /// Of a tile of out it has one of a row's eight 16-byte pieces, of every 16th row.
  static constexpr int kPieces = 8;
  static constexpr int kStep = kGroupThreads / kPieces;
  static constexpr int kPiecesEach = kTile / kStep;
  static_assert(kStep % 8 == 0);  // so the permutation stays the same
  static_assert(kPiecesEach == 4);

  static __device__ int row() { return read_thread() / kPieces; }
  static __device__ int piece() { return read_thread() % kPieces; }
  /// The row whose term the thread keeps, one of those that it has a piece of; the latter half of
  /// the threads with a row's pieces have none.
  static __device__ int own_row() { return row() + kStep * piece(); }

  /// Σ_d out · dout of the thread's own row, from the pieces that eight threads have of it.
  static __device__ float own_delta(const uint4 (&out)[kPiecesEach], const TileBytes& douts) {
    float sums[kPiecesEach];
    const std::byte* const dout = douts + Rows64{0}.at(row(), piece());
#pragma unroll
    for (int i = 0; i < kPiecesEach; ++i) {
      sums[i] = dot(out[i], *reinterpret_cast<const uint4*>(dout + i * kStep * Rows64::kRowBytes));
    }
    // Threads share the rows by halves.
    const auto add = [&](float own, float other, int step) {
      return own + __shfl_xor_sync(kAllLanes, other, step);
    };
    const bool odd = piece() % 2 != 0;
    const bool upper = piece() / 2 % 2 != 0;
    const float first = add(odd ? sums[1] : sums[0], odd ? sums[0] : sums[1], 1);
    const float second = add(odd ? sums[3] : sums[2], odd ? sums[2] : sums[3], 1);
    const float half = add(upper ? second : first, upper ? first : second, 2);
    return half + __shfl_xor_sync(kAllLanes, half, 4);
  }

  static __device__ float dot(const uint4& a, const uint4& b) {
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

  const Problem<bf16>& p_;
  const Matrices& from_;
  SharedMemory& shared_;
  int first_row_, column_;  // of the head
  float4 logsumexp_;
  unsigned landings_ = 0;  // bits of stages: the parity of those so far
};

/// The copying group.
template <class Way>
__device__ void produce(const Problem<bf16>& p, const RotationArgs& rotation,
                        const RotationOutputs& outputs, const Matrices& from,
                        SharedMemory& shared) {
  const int tiles = p.queries / kTile;
  const int heads = p.batch * p.heads;
  Copier copier(p, from, shared);
  GateGradients gates(tiles);
  Place now{static_cast<int>(blockIdx.x), 0, tiles - 1};
  int blocks = 0;
  for (int n = 0;; ++n) {
    const bool more = now.head < heads;
    if (!more && (!Way::kGate || gates.done(p))) {
      return;
    }
    const int stage = n % kStages;
    const bool first = now.tile == tiles - 1;  // of a block of keys
    if (more) {
      if (first && now.block == 0) {
        copier.seek(now.head);
      }
      barrier_at(shared.free[stage]).wait(n / kStages - 1);
      copier.start(now.block, now.tile, stage, first);
      // A first round is expected two tiles ahead, and its first two with a head's last two.
      const int next = now.head + static_cast<int>(gridDim.x);
      if (now.block == 0 && now.tile >= kGroups) {
        copier.expect(now.head, now.tile - kGroups);
      } else if (kGroups * (now.block + 1) == tiles && next < heads) {
        copier.expect(next, now.tile);
      }
      if (!first) {
        copier.hand_over(now.block, now.tile, stage);
      }
    }
    if (Way::kGate && n == gates.due()) {
      gates.add_block(p, rotation, outputs, shared);
    }
    if (more) {
      if (first) {
        if constexpr (!Way::kGate) {  // otherwise, the torque in their place has been added
          barrier_at(shared.keys_free[blocks % 2]).wait(blocks / 2 - 1);
        }
        barrier_at(shared.values_free).wait(blocks - 1);
        copier.start_keys(now.block, shared.keys[blocks % 2], stage);
        if constexpr (Way::kTurn == Turn::kPhases) {
          static_assert(kGroups * kTile == kGroupThreads);  // a thread for each token
          prefetch_l2(
              pairs_of(rotation.phases, p, now.head, kGroups * now.block * kTile + read_thread()));
        }
        copier.hand_over(now.block, now.tile, stage);
        ++blocks;
      }
      now.advance(tiles);
    }
  }
}

}  // namespace carope::cuda::tiled
