#pragma once

#include "ops/norm.h"
#include "ops/token_pass/token_pass.cuh"

namespace carope::cuda {

/// The sum of some numbers, and of the squares of their distances from their mean. Two such sets
/// of as many numbers join without the mean of all: so a row takes one round of exchanges, not two,
/// and one whose mean is large loses no digits.
struct Moments {
  float sum, squares;

  /// `weight` is 1 / (2 n) for n numbers on either side.
  __device__ Moments with(const Moments& other, float weight) const {
    const float apart = sum - other.sum;
    return {sum + other.sum, fmaf(apart * weight, apart, squares + other.squares)};
  }
};

/// The sum, in as few steps as there can be.
template <int N>
__device__ float sum_of_all(const float (&values)[N]) {
  float sums[N];
#pragma unroll
  for (int i = 0; i < N; ++i) {
    sums[i] = values[i];
  }
#pragma unroll
  for (int left = N; left > 1; left = (left + 1) / 2) {
#pragma unroll
    for (int i = 0; i < left / 2; ++i) {
      sums[i] += sums[left - 1 - i];
    }
  }
  return sums[0];
}

/// The norms of a token pass. A thread normalises the columns that it has received: only a warp's
/// moments and the results go through shared memory.
template <class Shape>
class TokenNorm {
  static constexpr int kColumns = kNormColumns / static_cast<int>(kWarp);  // of a thread: two words
  static_assert(kColumns == 4);
  static constexpr int kRoundColumns = kColumns * kPassThreads;
  static constexpr int kRounds =
      (Shape::kVectors * kStepColumns + kRoundColumns - 1) / kRoundColumns;
  static constexpr int kParts = Shape::kVectors * kStepColumns / kNormColumns;  // at most

 public:
  /// Gain and shift of a thread's columns.
  struct Share {
    float gain[kRounds][kColumns], shift[kRounds][kColumns];
  };

  /// `normed` [C] is where the results go.
  __device__ TokenNorm(const PassArgs& args, bf16* normed, std::byte* shared, const PassMemory& at)
      : shape_(args.shape),
        normed_(normed),
        moments_(reinterpret_cast<float*>(shared + at.moments)),
        lane_(static_cast<int>(threadIdx.x % kWarp)) {}

  __device__ Share share_of(const NormPointers& norm) const {
    Share share{};
    for_each_round([&](int i, int column) {
      load_floats(norm.gain + column, share.gain[i]);
      load_floats(norm.shift + column, share.shift[i]);
    });
    return share;
  }

  /// Waits for a row, which it leaves in `row`, and normalises it.
  __device__ void receive(const CopiedWords& words, std::uint32_t tag, const Share& share,
                          bf16* row) const {
    Words x;
    if (warp_column(0) < shape_.width) {
      await(
          tag, x, [&](int i) { return words.own(column_of(i) / 2); },
          [&](int i) { return column_of(i) < shape_.width; });
      share_moments(x);
    }
    sync_pass();
    normalise(x, statistics(), share, row);
  }

  /// The same with an embedding. Its statistics are the bits that other kernels compute: the clocks
  /// of the first layer show the same for all of them.
  __device__ void take(const bf16* embedding, const Share& share, bf16* row) const {
    Words x{};
    for_each_round([&](int i, int column) {
      const auto pair =
          Vec<std::uint32_t, 2>::load(reinterpret_cast<const std::uint32_t*>(embedding + column));
      x[i][0] = pair.at[0];
      x[i][1] = pair.at[1];
    });
    normalise(x, statistics_of(embedding), share, row);
  }

 private:
  using Words = std::uint32_t[kRounds][2];  // a thread's columns
  struct Statistics {
    float mean, rstd;

    /// The variance is not negative, so nothing is done about the smallest numbers here.
    __device__ static Statistics of(float mean, float variance) {
      float rstd;
      asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(rstd) : "f"(variance + kNormEpsilon));
      return {mean, rstd};
    }
  };

  __device__ static int column_of(int round) {
    return round * kRoundColumns + static_cast<int>(threadIdx.x) * kColumns;
  }
  /// The first of the warp's.
  __device__ int warp_column(int round) const { return column_of(round) - lane_ * kColumns; }
  template <class Visit>
  __device__ void for_each_round(const Visit& visit) const {
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      if (const int column = column_of(i); column < shape_.width) {
        visit(i, column);
      }
    }
  }

  __device__ static void unpack_words(const std::uint32_t (&words)[2], float (&values)[kColumns]) {
#pragma unroll
    for (int k = 0; k < kColumns; ++k) {
      const std::uint32_t word = words[k / 2];
      values[k] = __uint_as_float(k % 2 == 0 ? word << 16 : word & 0xFFFF0000);
    }
  }

  /// Puts the moments of the warp's columns, each time, into shared memory.
  __device__ void share_moments(const Words& x) const {
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      const int column = warp_column(i);
      if (column >= shape_.width) {
        break;
      }
      float v[kColumns];
      unpack_words(x[i], v);
      Moments moments = Moments{v[0], 0.0F}
                            .with({v[1], 0.0F}, 0.5F)
                            .with(Moments{v[2], 0.0F}.with({v[3], 0.0F}, 0.5F), 0.25F);
#pragma unroll
      for (int step = 1; step < static_cast<int>(kWarp); step *= 2) {
        const Moments other{__shfl_xor_sync(kAllLanes, moments.sum, step),
                            __shfl_xor_sync(kAllLanes, moments.squares, step)};
        const bool exists = 2 * step < static_cast<int>(kWarp) || is_whole(column);
        moments = moments.with(other, exists ? 0.5F / static_cast<float>(step * kColumns) : 0.0F);
      }
      if (lane_ == 0) {
        const Vec<float, 2> pair{{moments.sum, moments.squares}};
        pair.store(moments_ + column / kNormColumns * 2);
      }
    }
  }

  /// Whether a warp has kNormColumns of the row's columns from `first` on, or half as many.
  __device__ bool is_whole(int first) const {
    return shape_.width % kNormColumns == 0 || first + kNormColumns <= shape_.width;
  }

  /// From the moments of all warps.
  __device__ Statistics statistics() const {
    float pairs[2 * kParts], sums[kParts], squares[kParts];
    load_floats(moments_, pairs);
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      const bool exists = i * kNormColumns < shape_.width;
      sums[i] = exists ? pairs[2 * i] : 0.0F;
      squares[i] = exists ? pairs[2 * i + 1] : 0.0F;
    }
    const float per_column = 1.0F / static_cast<float>(shape_.width);
    const float mean = sum_of_all(sums) * per_column;
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      if (const int first = i * kNormColumns; first < shape_.width) {
        constexpr float kWhole = kNormColumns, kHalf = kWhole / 2;
        const float apart = fmaf(sums[i], is_whole(first) ? 1.0F / kWhole : 1.0F / kHalf, -mean);
        squares[i] = fmaf(apart * (is_whole(first) ? kWhole : kHalf), apart, squares[i]);
      }
    }
    return Statistics::of(mean, sum_of_all(squares) * per_column);
  }

  /// Of a whole row that every warp reads, added up in the order of the other kernels of the norm.
  __device__ Statistics statistics_of(const bf16* row) const {
    constexpr int kVectors = Shape::kVectors;
    const auto width = static_cast<float>(shape_.width);
    RawRow<bf16, kLaneColumns> vectors[kVectors];
    const auto sum_with = [&](const auto& add) {
      float sum = 0.0F;
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        if (i * kStepColumns + lane_ * kLaneColumns < shape_.width) {
          float values[kLaneColumns];
          unpack(vectors[i], values);
#pragma unroll
          for (const float value : values) {
            sum = add(sum, value);
          }
        }
      }
      return warp_sum(sum);
    };
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (const int column = i * kStepColumns + lane_ * kLaneColumns; column < shape_.width) {
        vectors[i] = RawRow<bf16, kLaneColumns>::load(row + column);
      }
    }
    const float mean = sum_with([](float sum, float value) { return sum + value; }) / width;
    const float squares =
        sum_with([&](float sum, float value) { return fmaf(value - mean, value - mean, sum); });
    return Statistics::of(mean, squares / width);
  }

  /// Leaves the row and the result in shared memory, for all of the block.
  __device__ void normalise(const Words& x, const Statistics& of, const Share& share,
                            bf16* row) const {
    for_each_round([&](int i, int column) {
      const Vec<std::uint32_t, 2> words{{x[i][0], x[i][1]}};
      words.store(reinterpret_cast<std::uint32_t*>(row + column));
      float values[kColumns];
      unpack_words(x[i], values);
#pragma unroll
      for (int k = 0; k < kColumns; ++k) {
        values[k] = (values[k] - of.mean) * of.rstd * share.gain[i][k] + share.shift[i][k];
      }
      pack<bf16>(values).store(normed_ + column);
    });
    sync_pass();
  }

  Shape shape_;
  bf16* normed_;    // [C]
  float* moments_;  // [kParts, 2]
  int lane_;
};

}  // namespace carope::cuda
