#pragma once

#include "ops/cuda/kernel.cuh"

// How the running blocks of a grid hand values to each other without a barrier. A value travels in
// one word with the tag of the time that it is of: who needs it reads until the tag is right, and
// has it then. A place may stay as it is for some launches, but its tags rise: what was there
// before has the tag that is waited for only if it is 2^32 tags old.
namespace carope::cuda {

/// A value of 32 bits and, above it, its tag. Accesses of 64 bits are never torn; of 128 bits each
/// half is by itself.
using TaggedWord = std::uint64_t;

/// Words that all blocks read lie in so many copies, each for some of the blocks: from the same few
/// lines of the L2 cache they would have to read one after another.
inline constexpr int kCopies = 4;

struct CopiedWords {
  TaggedWord* first;
  int count;  // of a copy

  /// Added up in 32 bits: addresses are to take few registers.
  __device__ TaggedWord* at(int copy, int index) const {
    return first + static_cast<std::uint32_t>(copy * count + index);
  }
  /// In the copy that this block reads.
  __device__ const TaggedWord* own(int index) const {
    return at(static_cast<int>(blockIdx.x % kCopies), index);
  }
};

__device__ inline void publish(TaggedWord* to, std::uint32_t value, std::uint32_t tag) {
  asm volatile(
      "{\n.reg .b64 word;\n"
      "mov.b64 word, {%1, %2};\n"
      "st.relaxed.gpu.global.b64 [%0], word;\n}" ::"l"(to),
      "r"(value), "r"(tag)
      : "memory");
}
__device__ inline void publish(TaggedWord* to, float value, std::uint32_t tag) {
  publish(to, __float_as_uint(value), tag);
}

// What was asked for before waiting is not to be asked for after it: hence "memory".
__device__ inline void look_at(const TaggedWord* from, TaggedWord (&words)[1]) {
  asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];" : "=l"(words[0]) : "l"(from) : "memory");
}
__device__ inline void look_at(const TaggedWord* from, TaggedWord (&words)[2]) {
  asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];"
               : "=l"(words[0]), "=l"(words[1])
               : "l"(from)
               : "memory");
}

/// The values of kCount places of kEach words, once all of them have the tag: of place_of(i), or
/// zeros where exists(i) is false.
template <int kEach, int kCount, class PlaceOf, class Exists>
__device__ void await(std::uint32_t tag, std::uint32_t (&values)[kCount][kEach],
                      const PlaceOf& place_of, const Exists& exists) {
  bool ready;
  do {
    TaggedWord words[kCount][kEach];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
#pragma unroll
      for (int k = 0; k < kEach; ++k) {
        words[i][k] = static_cast<TaggedWord>(tag) << 32;
      }
      if (exists(i)) {
        look_at(place_of(i), words[i]);
      }
    }
    ready = true;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
#pragma unroll
      for (int k = 0; k < kEach; ++k) {
        values[i][k] = static_cast<std::uint32_t>(words[i][k]);
        ready &= static_cast<std::uint32_t>(words[i][k] >> 32) == tag;
      }
    }
  } while (!ready);
}

}  // namespace carope::cuda
