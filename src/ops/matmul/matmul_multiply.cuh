#pragma once

#include <cuda_fp16.h>

#include "ops/matmul/matmul_tiles.cuh"

// The parts of bringing the factors of a product, and of multiplying them.
namespace carope::cuda::matmul {

/// Brings the factors. One thread does.
template <Pass kPass>
__device__ void produce(const Product& p, SharedMemory& shared) {
  constexpr int kAll = (1 << kBlocks) - 1;  // blocks
  const int rank = cluster_rank();
  int n = 0;
  for (Walk<kPass> walk(p); walk.more(); walk.advance()) {
    const Place at = walk.place();
    for (int step = 0; step < p.steps; ++step, ++n) {
      const int stage = n % kStages;
      const std::uint32_t right = shared_address(shared.right[stage]);
      const SharedBarrier filled = barrier_at(shared.filled[stage]);
      barrier_at(shared.free[stage]).wait(n / kStages - 1);
      arrive_expecting(filled, kLeftBytes + kRightBytes);
      const int k = step * kDepth;
      load_tile(shared_address(shared.left[stage]), p.left, at.row, k, filled);
      if constexpr (kPass != Pass::kBackward) {
        load_tile_for(kAll, right + rank * kRightBytes / kBlocks, p.right,
                      at.column + rank * kCols / kBlocks, k, filled);
      } else {
        if (step < kPieces) {  // long before it is used
          prefetch_tile(p.input, at.row, at.column + step * kPieceCols);
        }
        constexpr int kSlabs = kCols / 64;
#pragma unroll
        for (int i = 0; i < kSlabs / kBlocks; ++i) {
          const int slab = rank * kSlabs / kBlocks + i;
          load_tile_for(kAll, right + slab * kRightBytes / kSlabs, p.right, k,
                        at.column + slab * 64, filled);
        }
      }
    }
  }
}

/// Hands a warp's 16 rows of finished sums over, piece by piece.
template <Pass kPass>
class HandOver {
 public:
  /// What is added to a lane's sums of a tile: the bias of its columns; of powers, its two rows'
  /// shifts with the other sign.
  using Addends = std::conditional_t<kPass == Pass::kPowers, float[2], std::uint32_t[kCols / 8]>;

  explicit __device__ HandOver(SharedMemory& shared)
      : target_(Rows64{shared_address(shared.pieces[threadIdx.x / kWarp])}.at(lane() % 16,
                                                                              lane() / 16)),
        filled_(shared_address(shared.piece_filled[threadIdx.x / kWarp])) {}

  /// Loads them in time for `take`. Where there is no bias they are zero.
  static __device__ void load_addends(const Product& p, const Place& at, Addends& addends) {
    if constexpr (kPass == Pass::kForward) {
      const auto* from = reinterpret_cast<const std::uint32_t*>(p.bias + at.column) + lane() % 4;
#pragma unroll
      for (int i = 0; i < kCols / 8; ++i) {
        addends[i] = p.bias != nullptr ? from[4 * i] : 0;
      }
    } else if constexpr (kPass == Pass::kPowers) {
      const float* from = p.shifts + at.row + threadIdx.x / kWarp * kPieceRows + lane() / 4;
      addends[0] = -from[0];
      addends[1] = -from[8];
    }
  }

  /// Rounds a tile's sums; hands over the first pieces and puts the others aside.
  template <int kParts, int kEach>
  __device__ __forceinline__ void take(const float (&sums)[kParts][kEach], const Addends& addends) {
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      std::uint32_t words[kWords];
#pragma unroll
      for (int i = 0; i < kWords; ++i) {
        const int pair = piece * kWords + i;
        const float* from = &sums[2 * pair / kEach][2 * pair % kEach];
        words[i] = rounded({from[0], from[1]}, pair, addends);
      }
      if (piece < kSlots) {
        pass(piece, words);
      } else {
#pragma unroll
        for (int i = 0; i < kWords; ++i) {
          kept_[piece - kSlots][i] = words[i];
        }
      }
    }
  }

  /// Hands over a piece that was put aside.
  __device__ void pass_kept(int piece) { pass(piece, kept_[piece - kSlots]); }

 private:
  static constexpr int kWords = kPieceCols / 4;  // of a lane, each a pair of columns

  static __device__ int lane() { return static_cast<int>(threadIdx.x % kWarp); }

  /// The pair with this number of a lane's sums as it is handed over. An exponent is in fp16: one
  /// below 8 is off by no more than its power will be in bf16.
  static __device__ std::uint32_t rounded(float2 sum, int pair, const Addends& addends) {
    if constexpr (kPass == Pass::kPowers) {
      constexpr float kLog2E = 1.44269504F;
      const float addend = addends[pair % 2];
      const __half2 exponents =
          __floats2half2_rn(__fmaf_rn(sum.x, kLog2E, addend), __fmaf_rn(sum.y, kLog2E, addend));
      return reinterpret_cast<const std::uint32_t&>(exponents);
    } else if constexpr (kPass == Pass::kForward) {
      const float2 bias = unpack_bf16(addends[pair / 2]);  // the same in two rows
      return pack_bf16(sum.x + bias.x, sum.y + bias.y);
    } else {
      return pack_bf16(sum.x, sum.y);
    }
  }

  __device__ __forceinline__ void pass(int piece, const std::uint32_t (&words)[kWords]) {
    constexpr int kBarrierBytes = sizeof(std::uint64_t);
    constexpr int kToFree =
        offsetof(SharedMemory, piece_free) - offsetof(SharedMemory, piece_filled);
    const int slot = piece % kSlots;
    const SharedBarrier filled{filled_ + slot * kBarrierBytes};
    SharedBarrier{filled.address + kToFree}.wait(times_ - 1);
#pragma unroll
    for (int i = 0; i < kPieceCols / 16; ++i) {
      // The permutation of pieces of 16 bytes is an exclusive or.
      store_fragment((target_ + slot * kPieceBytes) ^ (i * 32),
                     {{words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]}});
    }
    __syncwarp();
    if (lane() == 0) {
      filled.arrive();
    }
    times_ += slot == kSlots - 1 ? 1 : 0;
  }

  std::uint32_t target_;                          // of this lane in the first slot
  std::uint32_t filled_;                          // of the first slot
  std::uint32_t kept_[kPieces - kSlots][kWords];  // in the order of the sums
  int times_ = 0;                                 // that each slot has been used
};

/// A warpgroup's part: half of the rows of each tile.
template <Pass kPass>
__device__ void consume(const Product& p, SharedMemory& shared, int group) {
  constexpr int kParts = kWide<kPass> ? 1 : 2;
  float sums[kParts][kCols / kParts / 2];
  int n = 0;  // steps so far
  const auto start_step = [&](bool add) {
    const int stage = n % kStages;
    const auto left = SharedFactor::along_result(shared_address(shared.left[stage]) +
                                                 group * kLeftBytes / kGroups);
    barrier_at(shared.filled[stage]).wait(n / kStages);
    begin_products();
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const std::uint32_t address =
          shared_address(shared.right[stage]) + part * kRightBytes / kParts;
      const auto right = kPass == Pass::kBackward
                             ? SharedFactor::along_sum(address, kDepth * Rows64::kRowBytes)
                             : SharedFactor::along_result(address);
      start_product<false, kPass == Pass::kBackward>(sums[part], left, right, add);
    }
    close_products();
    ++n;
  };
  const auto free_stage = [&](int step) {
    __syncwarp();
    const auto lane = static_cast<int>(threadIdx.x % kWarp);
    if (lane < kBlocks) {  // each has brought a part
      arrive_at(barrier_at(shared.free[step % kStages]), lane);
    }
    __syncwarp();
  };
  const auto finish_step_before = [&] {
    wait_for_products<1>();
    free_stage(n - 2);
  };

  HandOver<kPass> hand_over(shared);
  bool any = false;  // tiles before
  for (Walk<kPass> walk(p); walk.more(); walk.advance()) {
    int step = 0;
#pragma unroll
    for (int piece = kSlots - 1; piece < kPieces; ++piece) {
      start_step(step > 0);
      if (piece >= kSlots && any) {
        hand_over.pass_kept(piece);
      }
      if (step > 0) {
        finish_step_before();
      }
      // The finishing warps have had the time for what they were handed before.
      const int end = piece == kPieces - 1 ? p.steps : p.steps * (piece + 2 - kSlots) / kPieces;
      for (++step; step < end; ++step) {
        start_step(true);
        finish_step_before();
      }
    }
    typename HandOver<kPass>::Addends addends;
    hand_over.load_addends(p, walk.place(), addends);
    wait_for_products<0>();
#pragma unroll
    for (auto& part : sums) {
      settle(part);
    }
    free_stage(n - 1);
    hand_over.take(sums, addends);
    any = true;
  }
  if (any) {
#pragma unroll
    for (int piece = kSlots; piece < kPieces; ++piece) {
      hand_over.pass_kept(piece);
    }
  }
}

}  // namespace carope::cuda::matmul
