#pragma once

#include "ops/kernel.cuh"
#include "ops/narrow_linear_cuda.h"

// What the kernels of layers with few outputs share.
namespace carope::cuda {

inline constexpr int kNarrowThreads = 128;
inline constexpr int kNarrowWarps = kNarrowThreads / kWarp;

/// A number that templates can be chosen by.
template <int kValue>
struct Constant {
  static constexpr int value = kValue;
};

/// Whether every row can be taken in pieces of so many elements.
template <class T>
bool rows_align(const Tensor& tensor, int elements) {
  return tensor.cols() % elements == 0 &&
         reinterpret_cast<std::uintptr_t>(tensor.raw()) % (elements * sizeof(T)) == 0;
}

inline unsigned blocks_for(std::int64_t items, std::int64_t per_block) {
  return static_cast<unsigned>(ceil_div(items, per_block));
}

inline void check_narrow(std::int64_t outputs) {
  check<ShapeError>(outputs <= kMaxNarrowOutputs, "a narrow layer has {} outputs; at most {}",
                    outputs, kMaxNarrowOutputs);
}

}  // namespace carope::cuda
