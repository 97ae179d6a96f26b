#pragma once

#include "ops/cuda/kernel.cuh"
#include "ops/cuda/tensor_core.cuh"
#include "ops/matmul/narrow_linear_cuda.h"

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

/// dy of `count` rows, for kOutputs outputs from `first` on, those past the last one zero.
template <int kOutputs>
__device__ void load_stage(const float* dy, std::int64_t row, int count, int first, int outputs,
                           float* stage) {
  for (int i = static_cast<int>(threadIdx.x); i < count * kOutputs; i += kNarrowThreads) {
    const int output = first + i % kOutputs;
    stage[i] = output < outputs ? dy[(row + i / kOutputs) * outputs + output] : 0.0F;
  }
}

// On tensor cores activations are exactly bf16, and a number of fp32 is exactly the sum of three of
// bf16. Tensor cores cut off what they add: so leading parts are summed in short pieces, which
// ordinary additions join.

inline constexpr int kParts = 3;

/// Four words of two bf16 numbers, one access to shared memory.
using Words = Vec<std::uint32_t, 4>;

/// Takes the leading part off two numbers.
__device__ inline std::uint32_t take_part(float& low, float& high) {
  const std::uint32_t part = pack_bf16(low, high);
  low -= __uint_as_float(part << 16);
  high -= __uint_as_float(part & 0xFFFF0000U);
  return part;
}

/// Splits eight numbers, two a word, into words `stride` apart.
__device__ inline void split(float (&numbers)[8], Words* parts, int stride) {
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    Words words;
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      words.at[word] = take_part(numbers[2 * word], numbers[2 * word + 1]);
    }
    parts[part * stride] = words;
  }
}

/// The leading part of two numbers, and the one after it. Two parts of either factor are enough for
/// a result that is rounded to bf16, and of weights for logits: what is left out is below 2^-16 of
/// a product, 2^-18 on average.
struct TwoParts {
  std::uint32_t high, low;

  __device__ static TwoParts of(float first, float second) {
    TwoParts parts;
    parts.high = take_part(first, second);
    parts.low = pack_bf16(first, second);
    return parts;
  }
};

inline constexpr int kStageColumns = 64;  // whole lines of memory
inline constexpr int kStageRows = 32;
inline constexpr int kStageBytes = kStageRows * kStageColumns * static_cast<int>(sizeof(bf16));

/// Pieces of x, [32 rows, 64 columns], on their way to one warp through its own shared memory. No
/// warp waits for another, and all stages but one are always under way.
template <int kStages>
class Pipeline {
 public:
  static constexpr int kBytes = kStages * kStageBytes;

  __device__ Pipeline(std::uint32_t shared, const bf16* x, std::int64_t rows, int columns)
      : shared_{shared}, x_(x), rows_(rows), columns_(columns) {}

  /// Starts a copy into the place of piece `index`; what lies outside of x becomes zero.
  __device__ void start(int index, std::int64_t row, int column) const {
    const auto lane = static_cast<int>(threadIdx.x % kWarp);
    const SharedRows<kStageColumns> to = stage(index);
    const int piece = lane % 8;
    const bool exists = column + piece * 8 < columns_;
    const bf16* from = x_ + (row + lane / 8) * columns_ + column + piece * 8;
#pragma unroll
    for (int i = 0; i < kStageRows; i += 4) {
      const bool valid = exists && row + lane / 8 + i < rows_;
      copy_16_bytes(to.at(lane / 8 + i, piece), valid ? from + i * columns_ : x_, valid);
    }
  }
  __device__ SharedRows<kStageColumns> stage(int index) const {
    return shared_.from(index % kStages * kStageRows);
  }

 private:
  SharedRows<kStageColumns> shared_;
  const bf16* x_;
  std::int64_t rows_;
  int columns_;
};

/// Shared memory a block may ask for.
inline int shared_bytes(const Context& ctx) {
  int bytes = 0;
  CUDA_CHECK(
      cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, ctx.device().index));
  return bytes;
}

}  // namespace carope::cuda
