#pragma once

#include "ops/cuda/kernel.cuh"

// Barriers in shared memory that threads wait at for other threads and, from sm_90 on, for copies.
namespace carope::cuda {

/// A barrier in shared memory that opens each time `count` threads have arrived.
struct SharedBarrier {
  std::uint32_t address;

  __device__ void init(int count) const {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(address), "r"(count) : "memory");
  }
  __device__ void arrive() const {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(address) : "memory");
  }
  /// Waits for the opening number `time`, counted from 0; number -1 was before the beginning.
  __device__ void wait(int time) const {
    int opened = 0;
    while (opened == 0) {
      asm volatile(
          "{\n.reg .pred opened;\n"
          "mbarrier.try_wait.parity.shared.b64 opened, [%1], %2;\n"
          "selp.b32 %0, 1, 0, opened;\n}"
          : "=r"(opened)
          : "r"(address), "r"(time & 1)
          : "memory");
    }
  }
  /// The same without waiting.
  __device__ bool has_opened(int time) const {
    int opened;
    asm volatile(
        "{\n.reg .pred opened;\n"
        "mbarrier.test_wait.parity.shared.b64 opened, [%1], %2;\n"
        "selp.b32 %0, 1, 0, opened;\n}"
        : "=r"(opened)
        : "r"(address), "r"(time & 1)
        : "memory");
    return opened != 0;
  }
};

/// Arrives at a barrier, which then opens only after `bytes` more have been copied.
__device__ inline void arrive_expecting(const SharedBarrier& barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier.address),
               "r"(bytes)
               : "memory");
}

/// Starts the copy of bytes in a row, in whole pieces of 16; `arrived` counts them.
__device__ inline void load_bytes(std::uint32_t to, const void* from, int bytes,
                                  const SharedBarrier& arrived) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1], %2, [%3];" ::"r"(to),
      "l"(from), "r"(bytes), "r"(arrived.address)
      : "memory");
}

/// A barrier of the block by number, for kThreads of its threads: those that wait, and those that
/// only say that they have come by.
template <int kThreads>
__device__ void wait_at(int barrier) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(kThreads) : "memory");
}
template <int kThreads>
__device__ void pass_by(int barrier) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "n"(kThreads) : "memory");
}

}  // namespace carope::cuda
