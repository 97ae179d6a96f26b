#pragma once

#include <cstddef>

#include "ops/cuda/tensor_copy.cuh"

// Matrix products that make more of their sums: a GELU, or the powers of a softmax. A block stays
// on its multiprocessor and takes tiles of 128 x 256 of the result, one after another. Its warps
// have different parts:
// - one thread brings the factors (matmul_multiply.cuh). The blocks of a cluster have tiles below
//   each other, and each brings a part of their right factor for all;
// - two warpgroups multiply (matmul_multiply.cuh), half of a tile's rows each, and do little else,
//   so that the tensor cores have work queued all the time. When a tile's sums are complete, their
//   warps round them and hand them over, a piece of 16 x 64 at a time: half of a tile at once, the
//   rest, kept in few registers, while the next tile is computed;
// - for each two or three of their warps another one finishes what they hand over
//   (matmul_finish.cuh).
namespace carope::cuda::matmul {

constexpr int kRows = 128;
constexpr int kCols = 256;
constexpr int kDepth = 64;  // of the sum, at once
constexpr int kStages = 4;
constexpr int kBlocks = 2;  // of a cluster
constexpr int kGroups = 2;
constexpr int kConsumers = kGroups * kGroupThreads;
constexpr int kConsumerWarps = kConsumers / kWarp;

using Rows64 = SharedRows<64>;
constexpr int kPieceRows = 16;  // of a warp
constexpr int kPieceCols = 64;
constexpr int kPieceBytes = kPieceRows * Rows64::kRowBytes;
constexpr int kPieces = kCols / kPieceCols;  // of a warp's rows
constexpr int kSlots = 2;                    // so many of them are handed over at once
constexpr int kLeftBytes = kRows * Rows64::kRowBytes;
constexpr int kRightBytes = kCols * Rows64::kRowBytes;

struct alignas(1024) SharedMemory {
  std::byte left[kStages][kLeftBytes];
  std::byte right[kStages][kRightBytes];
  std::byte pieces[kConsumerWarps][kSlots][kPieceBytes];
  std::uint64_t filled[kStages], free[kStages];
  std::uint64_t piece_filled[kConsumerWarps][kSlots], piece_free[kConsumerWarps][kSlots];
};

enum class Pass : std::uint8_t {
  kForward,   // of a GELU
  kBackward,  // of a GELU
  kPowers,    // of a softmax
};

/// Whether a warpgroup's products have all 256 columns of a tile, and so read the left factor from
/// shared memory half as often. Only blocks with fewer warps start with the registers for that.
template <Pass kPass>
constexpr bool kWide = kPass == Pass::kPowers;

/// The warps of a block besides those that multiply, and the registers of each thread once they
/// have shared them out: together as many as the block starts with.
template <Pass kPass>
struct Team {
  static constexpr int kFinishers = kWide<kPass> ? 3 : 4;            // warps
  static constexpr int kProducer = kConsumers + kFinishers * kWarp;  // thread
  static constexpr int kThreads = kConsumers + (kWide<kPass> ? 1 : 2) * kGroupThreads;

  static constexpr int kConsumerRegisters = kWide<kPass> ? 200 : 184;
  static constexpr int kFinisherRegisters = kWide<kPass> ? 104 : 120;
  static constexpr int kProducerRegisters = 24;  // where its warpgroup is not the finishers'
  static_assert(kConsumers * kConsumerRegisters + kGroupThreads * kFinisherRegisters +
                    (kWide<kPass> ? 0 : kGroupThreads * kProducerRegisters) <=
                kThreads * (65536 / kThreads / 8 * 8));
};

struct Product {
  CUtensorMap left;     // [M, K]
  CUtensorMap right;    // [N, K], in the backward pass [K, N]
  CUtensorMap input;    // saved, in the backward pass
  bf16* saved;          // [M, N], of a GELU
  bool slopes;          // what is saved; otherwise inputs
  bf16* result;         // [M, N]
  const bf16* bias;     // [N] or null
  const float* shifts;  // [M], of powers
  float* shares;        // of the sums of the result's columns, or null; of powers, of its rows
  int rows;             // M
  int width;            // N
  int steps;            // K / kDepth
  int columns;          // of tiles
  int tiles;            // of a cluster
  int period;           // a cluster's every period-th tile is in the same column
};

/// The powers of a softmax are of two, to at most this exponent.
constexpr float kLargestExponent = 100.0F;

/// A block's tile.
struct Place {
  int row, column;
  int share;  // which share of its columns' sums it adds to
};

/// The tiles of a cluster: clusters take them in turns, band by band of kBand rows of tiles, and
/// column by column within a band. With a GELU a band is a row, so that tiles under way have few
/// rows; of those a cluster will take, the ones in the same column come first. No cache holds the
/// right factor of a softmax: it is read once for each band, whose rows of the left one stay there.
template <Pass kPass>
class Walk {
 public:
  explicit __device__ Walk(const Product& p)
      : p_(p), clusters_(gridDim.x / kBlocks), first_(blockIdx.x / kBlocks), tile_(first_) {}

  __device__ bool more() const { return tile_ < p_.tiles; }
  /// Whether it is the last one in its column.
  __device__ bool ends_column() const { return tile_ + clusters_ * p_.period >= p_.tiles; }
  __device__ void advance() {
    if (!ends_column()) {
      tile_ += clusters_ * p_.period;
    } else {
      first_ += clusters_;
      tile_ = first_ < clusters_ * p_.period ? first_ : p_.tiles;
    }
  }

  __device__ Place place() const {
    const int rank = cluster_rank();
    const int band = tile_ / (kBand * p_.columns) * kBand;  // its first row of tiles
    const int height = kBand == 1 ? 1 : min(kBand, p_.rows / (kRows * kBlocks) - band);
    const int within = tile_ - band * p_.columns;
    return {((band + within % height) * kBlocks + rank) * kRows, within / height * kCols,
            first_ / p_.columns * kBlocks + rank};
  }

 private:
  static constexpr int kBand = kPass == Pass::kPowers ? 16 : 1;

  const Product& p_;
  int clusters_;
  int first_;  // of this column
  int tile_;
};

__device__ inline SharedBarrier barrier_at(const std::uint64_t& barrier) {
  return {shared_address(&barrier)};
}

}  // namespace carope::cuda::matmul
