#pragma once

#include "ops/kernel.cuh"

// Copies from memory to shared memory that the multiprocessor makes by itself (sm_90 and later),
// whole rows at a time, long before they are needed.
namespace carope::cuda {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
inline constexpr bool kHasCopyRings = true;
#else
inline constexpr bool kHasCopyRings = false;
#endif

/// A barrier in shared memory that opens each time a copy is complete.
struct CopyBarrier {
  static constexpr int kBytes = 8;
  std::uint32_t address;

  __device__ void init() const {
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(address) : "memory");
  }
  /// Makes barriers that this thread began known to the copies that are started after the next
  /// __syncthreads().
  __device__ static void publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
  /// Starts a copy of a multiple of 16 bytes, at addresses that are such, too.
  __device__ void start_copy(std::uint32_t to, const void* from, int bytes) const {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(address), "r"(bytes)
                 : "memory");
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(to),
        "l"(from), "r"(bytes), "r"(address)
        : "memory");
  }
  __device__ bool has_opened(int parity) const {
    int opened;
    asm volatile(
        "{\n.reg .pred opened;\n"
        "mbarrier.try_wait.parity.shared.b64 opened, [%1], %2;\n"
        "selp.b32 %0, 1, 0, opened;\n}"
        : "=r"(opened)
        : "r"(address), "r"(parity)
        : "memory");
    return opened != 0;
  }
};

/// Rows on their way to one warp, in order, in as many slots of shared memory as there are. Every
/// lane calls everything.
class CopyRing {
 public:
  /// `barriers` has CopyBarrier::kBytes for each slot; some thread calls init() on every one and
  /// publishes them, and a __syncthreads() comes before the first start().
  __device__ CopyRing(std::byte* memory, std::byte* barriers, int slots, int bytes)
      : memory_(memory),
        address_(static_cast<std::uint32_t>(__cvta_generic_to_shared(memory))),
        barriers_(static_cast<std::uint32_t>(__cvta_generic_to_shared(barriers))),
        slots_(slots),
        bytes_(bytes) {}

  __device__ int slots() const { return slots_; }
  /// Asks for a row in a slot that has not been used yet.
  __device__ void start(int slot, const void* row) const {
    if (row != nullptr && threadIdx.x % kWarp == 0) {
      barrier(slot).start_copy(address_ + slot * bytes_, row, bytes_);
    }
  }
  /// The row that was asked for longest ago.
  __device__ const std::byte* wait() const {
    while (!barrier(slot_).has_opened(parity_)) {
    }
    return memory_ + slot_ * bytes_;
  }
  /// Gives its slot to the next row, if there is one.
  __device__ void replace(const void* next) {
    __syncwarp();  // all lanes have read it
    start(slot_, next);
    if (++slot_ == slots_) {
      slot_ = 0;
      parity_ ^= 1;
    }
  }

 private:
  __device__ CopyBarrier barrier(int slot) const {
    return {barriers_ + slot * CopyBarrier::kBytes};
  }

  std::byte* memory_;
  std::uint32_t address_, barriers_;
  int slots_, bytes_;
  int slot_ = 0;
  int parity_ = 0;
};

}  // namespace carope::cuda
