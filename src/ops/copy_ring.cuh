#pragma once

#include "ops/shared_barrier.cuh"

// Copies from memory to shared memory that the multiprocessor makes by itself (sm_90 and later),
// whole rows at a time, long before they are needed.
namespace carope::cuda {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
inline constexpr bool kHasCopyRings = true;
#else
inline constexpr bool kHasCopyRings = false;
#endif

/// Rows on their way to one warp, in order, in as many slots of shared memory as there are. Every
/// lane calls everything.
class CopyRing {
 public:
  static constexpr int kBarrierBytes = 8;

  /// `barriers` has kBarrierBytes for each slot; init_barriers() on them, and a __syncthreads(),
  /// come before the first start().
  __device__ CopyRing(std::byte* memory, std::byte* barriers, int slots, int bytes)
      : memory_(memory),
        address_(static_cast<std::uint32_t>(__cvta_generic_to_shared(memory))),
        barriers_(static_cast<std::uint32_t>(__cvta_generic_to_shared(barriers))),
        slots_(slots),
        bytes_(bytes) {}

  /// All of the block's threads begin the barriers of all its rings.
  __device__ static void init_barriers(std::byte* barriers, int count) {
    const auto first = static_cast<std::uint32_t>(__cvta_generic_to_shared(barriers));
    for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
      SharedBarrier{first + i * kBarrierBytes}.init(1);
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // known to the copies, too
  }

  __device__ int slots() const { return slots_; }
  /// Asks for a row in a slot that has not been used yet.
  __device__ void start(int slot, const void* row) const {
    if (row != nullptr && threadIdx.x % kWarp == 0) {
      arrive_expecting(barrier(slot), bytes_);
      load_bytes(address_ + slot * bytes_, row, bytes_, barrier(slot));
    }
  }
  /// The row that was asked for longest ago, or `later` rows after it, fewer than there are slots.
  __device__ const std::byte* wait(int later = 0) const {
    const bool wraps = slot_ + later >= slots_;
    const int slot = slot_ + later - (wraps ? slots_ : 0);
    barrier(slot).wait(wraps ? parity_ ^ 1 : parity_);
    return memory_ + slot * bytes_;
  }
  /// Gives the slot of the row that was asked for longest ago to the next one, if there is one.
  __device__ void replace(const void* next) {
    __syncwarp();  // all lanes have read it
    start(slot_, next);
    if (++slot_ == slots_) {
      slot_ = 0;
      parity_ ^= 1;
    }
  }

 private:
  __device__ SharedBarrier barrier(int slot) const { return {barriers_ + slot * kBarrierBytes}; }

  std::byte* memory_;
  std::uint32_t address_, barriers_;
  int slots_, bytes_;
  int slot_ = 0;
  int parity_ = 0;
};

}  // namespace carope::cuda
