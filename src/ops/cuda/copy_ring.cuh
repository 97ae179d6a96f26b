#pragma once

#include "ops/cuda/shared_barrier.cuh"

// Copies from memory to shared memory that the multiprocessor makes by itself (sm_90 and later),
// whole rows at a time, long before they are needed.
namespace carope::cuda {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
inline constexpr bool kHasCopyRings = true;
#else
inline constexpr bool kHasCopyRings = false;
#endif

/// Rows on their way to one warp, in order, in as many slots of shared memory as there are. A
/// thread of another warp brings them: what it takes to find the next one costs the warp nothing.
/// Either side has a ring of its own, with the same memory.
class CopyRing {
 public:
  static constexpr int kBarrierBytes = 16;  // of a slot's two barriers

  /// `barriers` has kBarrierBytes for each slot; init_barriers() on them, and a __syncthreads(),
  /// come before the first row.
  __device__ CopyRing(std::byte* memory, std::byte* barriers, int slots, int bytes)
      : memory_(memory),
        address_(static_cast<std::uint32_t>(__cvta_generic_to_shared(memory))),
        barriers_(static_cast<std::uint32_t>(__cvta_generic_to_shared(barriers))),
        slots_(slots),
        bytes_(bytes) {}

  /// All of the block's threads begin the barriers of the slots of all its rings.
  __device__ static void init_barriers(std::byte* barriers, int slots) {
    const auto first = static_cast<std::uint32_t>(__cvta_generic_to_shared(barriers));
    constexpr int kEach = 2;
    for (int i = static_cast<int>(threadIdx.x); i < kEach * slots;
         i += static_cast<int>(blockDim.x)) {
      SharedBarrier{first + i * (kBarrierBytes / kEach)}.init(1);
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // known to the copies, too
  }

  /// By the thread that brings rows: asks for one, if a slot is free.
  __device__ bool bring(const void* row) {
    if (!freed(slot_).has_opened(round_ - 1)) {
      return false;
    }
    arrive_expecting(arrived(slot_), bytes_);
    load_bytes(address_ + slot_ * bytes_, row, bytes_, arrived(slot_));
    go_on(1);
    return true;
  }

  /// Goes on with the row of this number, counted from 0: instead of a count that a thread keeps.
  __device__ void go_to(int row) {
    slot_ = row % slots_;
    round_ = row / slots_;
  }

  /// By every lane of the warp that has the rows: the row that was asked for longest ago, or
  /// `later` rows after it, fewer than there are slots.
  __device__ const std::byte* wait(int later = 0) const {
    const bool wraps = slot_ + later >= slots_;
    const int slot = slot_ + later - (wraps ? slots_ : 0);
    arrived(slot).wait(wraps ? round_ + 1 : round_);
    return memory_ + slot * bytes_;
  }
  /// By the same: gives back the slots of the kRows rows that were asked for longest ago.
  template <int kRows>
  __device__ void give_back() {
    __syncwarp();  // all lanes have read them
    if (const auto lane = static_cast<int>(threadIdx.x % kWarp); lane < kRows) {
      const int slot = slot_ + lane;
      freed(slot >= slots_ ? slot - slots_ : slot).arrive();
    }
    go_on(kRows);
  }

 private:
  __device__ SharedBarrier arrived(int slot) const { return {barriers_ + slot * kBarrierBytes}; }
  __device__ SharedBarrier freed(int slot) const {
    return {barriers_ + slot * kBarrierBytes + kBarrierBytes / 2};
  }
  __device__ void go_on(int rows) {
    slot_ += rows;
    if (slot_ >= slots_) {
      slot_ -= slots_;
      ++round_;
    }
  }

  std::byte* memory_;
  std::uint32_t address_, barriers_;
  int slots_, bytes_;
  int slot_ = 0;
  int round_ = 0;
};

}  // namespace carope::cuda
