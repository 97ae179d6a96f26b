#pragma once

#include "ops/cuda/kernel.cuh"

namespace carope::cuda {

/// 16 bytes of weights, which no other block reads: they are not to push anything out of the
/// caches.
template <class W, int N>
__device__ Vec<W, N> load_once(const W* from) {
  static_assert(sizeof(Vec<W, N>) == sizeof(uint4));
  const uint4 loaded = __ldcs(reinterpret_cast<const uint4*>(from));
  Vec<W, N> to;
  memcpy(&to, &loaded, sizeof(to));
  return to;
}

}  // namespace carope::cuda
