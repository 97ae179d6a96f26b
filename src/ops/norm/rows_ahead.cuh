#pragma once

#include "ops/cuda/shared_barrier.cuh"
#include "ops/cuda/tensor_core.cuh"

namespace carope::cuda {

/// Whether the device copies whole rows to shared memory by itself (sm_90 and later).
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
inline constexpr bool kHasBulkCopies = true;
#else
inline constexpr bool kHasBulkCopies = false;
#endif

/// Sixteen bytes of a row.
using RowPiece = RawRow<bf16, 8>;

/// Eight rows of bf16 on their way to one warp, through shared memory of its own, while it computes
/// with the eight before them: those it has in registers, where four lanes have a row between them,
/// 16 bytes of every 64 each. Every lane calls everything.
template <int kPieces>
class RowsAhead {
  static constexpr int kRowLanes = 4;
  static constexpr int kPieceBytes = 64;  // of a row's lanes together
  static constexpr int kRowBytes = kPieces * kPieceBytes;
  static constexpr int kBarrierBytes = 16;

 public:
  static constexpr int kRows = 8;
  static constexpr int kBytes = kRows * kRowBytes + kRows / 2 * kPieceBytes + kBarrierBytes;

  /// `shared` is a multiple of 16.
  __device__ explicit RowsAhead(std::byte* shared)
      : shared_(shared + kBarrierBytes), arrived_{shared_address(shared)} {
    if constexpr (kHasBulkCopies) {
      if (lane_ == 0) {
        arrived_.init(kRows);
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // known to the copies, too
      }
      __syncwarp();
    }
  }

  /// Asks for the rows of x from `first` on; in place of those past the last one, for that one.
  __device__ void start(const bf16* x, std::int64_t first, std::int64_t rows) const {
    const auto row = [&](int i) {
      return x + min(first + i, rows - 1) * (kRowBytes / static_cast<int>(sizeof(bf16)));
    };
    if constexpr (kHasBulkCopies) {
      if (lane_ < kRows) {
        arrive_expecting(arrived_, kRowBytes);
        load_bytes(shared_address(shared_) + row_offset(lane_), row(lane_), kRowBytes, arrived_);
      }
    } else {  // each lane for what it will read
      const bf16* from = row(lane_ / kRowLanes) + lane_ % kRowLanes * 8;
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        copy_16_bytes(shared_address(shared_ + lane_offset(i)),
                      from + i * (kPieceBytes / static_cast<int>(sizeof(bf16))), true);
      }
      close_copies();
    }
  }

  /// Waits for the rows asked for; then others may be.
  __device__ void take(RowPiece (&row)[kPieces]) {
    if constexpr (kHasBulkCopies) {
      arrived_.wait(time_++);
    } else {
      wait_for_copies<0>();
    }
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      row[i] = RowPiece::load(reinterpret_cast<const bf16*>(shared_ + lane_offset(i)));
    }
    __syncwarp();
  }

 private:
  /// The rows of a pair differ by half of the banks, as eight lanes read from both at once.
  __device__ static int row_offset(int row) {
    return row * kRowBytes + (row + 1) / 2 * kPieceBytes;
  }
  __device__ int lane_offset(int piece) const {
    return row_offset(lane_ / kRowLanes) + piece * kPieceBytes + lane_ % kRowLanes * 16;
  }

  std::byte* shared_;
  SharedBarrier arrived_;
  int lane_ = static_cast<int>(threadIdx.x % kWarp);
  int time_ = 0;
};

}  // namespace carope::cuda
