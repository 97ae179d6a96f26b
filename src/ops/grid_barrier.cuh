#pragma once

#include "ops/kernel.cuh"

namespace carope::cuda {

/// Where all blocks of a grid wait for each other; all of them must be running. A word of memory,
/// zero before the first launch, that every block adds to: the first block so much more than the
/// others that the last to come, whoever it is, flips the highest bit and leaves the others zero.
/// So the word needs no reset, and one place serves every time and every launch.
class GridBarrier {
 public:
  __device__ explicit GridBarrier(unsigned* word) : word_(word) {}

  /// By one thread of a block: what the block's threads wrote before its last __syncthreads(), or
  /// this warp's before __syncwarp(), can be read after the others' wait().
  __device__ void arrive() { seen_ = add(blockIdx.x == 0 ? kFlag - (gridDim.x - 1) : 1); }
  /// By the same thread. The block's others wait for it at __syncthreads().
  __device__ void wait() const {
    while (((load() ^ seen_) & kFlag) == 0) {
    }
  }

 private:
  static constexpr unsigned kFlag = 0x80000000U;

  __device__ unsigned add(unsigned number) const {
    unsigned before;
    asm volatile("atom.add.release.gpu.global.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(word_), "r"(number)
                 : "memory");
    return before;
  }
  __device__ unsigned load() const {
    unsigned now;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(word_) : "memory");
    return now;
  }

  unsigned* word_;
  unsigned seen_ = 0;
};

/// What other blocks wrote in this launch: read past the first-level cache, which does not know.
__device__ inline float load_fresh(const float* from) { return __ldcg(from); }
__device__ inline std::uint32_t load_fresh(const std::uint32_t* from) { return __ldcg(from); }
__device__ inline float load_fresh(const bf16* from) {
  return __uint_as_float(
      static_cast<std::uint32_t>(__ldcg(reinterpret_cast<const unsigned short*>(from))) << 16);
}
__device__ inline Vec<float, 2> load_fresh_pair(const float* from) {
  const float2 pair = __ldcg(reinterpret_cast<const float2*>(from));
  return {{pair.x, pair.y}};
}
__device__ inline Vec<bf16, 8> load_fresh_row(const bf16* from) {
  const uint4 loaded = __ldcg(reinterpret_cast<const uint4*>(from));
  Vec<bf16, 8> row;
  memcpy(&row, &loaded, sizeof(row));
  return row;
}

}  // namespace carope::cuda
