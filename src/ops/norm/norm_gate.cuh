#pragma once

#include "ops/matmul/narrow_linear.cuh"

// What a gate adds to the gradient of a norm's result, dlogits W, for a warp that takes rows one
// after the other and has some columns of each: made on tensor cores for eight rows at a time, then
// read from shared memory row by row. It is rounded to bf16, as is the gradient it is added to.
namespace carope::cuda {

struct GateGradient {
  const float* weight;   // [outputs, width]
  const float* dlogits;  // [rows, outputs]
  int outputs;           // at most kMostOutputs

  static constexpr int kMostOutputs = 16;
};

/// dlogits of eight rows, as a right factor: lane l has those of row l / 4.
struct SlabGradients {
  float numbers[4] = {};

  __device__ static SlabGradients load(const GateGradient& gate, std::int64_t row,
                                       std::int64_t rows) {
    const auto lane = static_cast<int>(threadIdx.x % kWarp);
    SlabGradients result;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int output = k / 2 * 8 + lane % 4 * 2 + k % 2;
      if (row < rows && output < gate.outputs) {
        result.numbers[k] = gate.dlogits[row * gate.outputs + output];
      }
    }
    return result;
  }
};

/// The shared memory of a block whose teams of kTeam warps have a row each, a lane kVectors times
/// eight columns of it.
template <int kVectors, int kTeam, int kWarps>
struct GateShared {
  static constexpr int kRows = 8;
  static constexpr int kBlockColumns = 64;  // four products of 16 columns
  static constexpr int kWarpColumns = kVectors * static_cast<int>(kWarp) * 8;
  static constexpr int kBlocks = kWarpColumns / kBlockColumns;
  static constexpr int kPieces = kWarpColumns / 8 + 1;  // one more, so that rows differ in banks

  Words weights[kBlocks * kTeam][4][2][kWarp];  // Wᵀ as left factors in two parts
  Words slabs[kWarps][kRows][kPieces];

  /// Called by the whole block. Column 2 i of a product's 16 is number i, column 2 i + 1 number
  /// i + 8, and four products take turns in pairs of columns: a lane's results of four are eight
  /// neighbours.
  __device__ void load(const GateGradient& gate, int width) {
    constexpr int kCount = kBlocks * kTeam * 4 * static_cast<int>(kWarp);
    for (auto i = static_cast<int>(threadIdx.x); i < kCount;
         i += kWarps * static_cast<int>(kWarp)) {
      const int lane = i % static_cast<int>(kWarp);
      const int product = i / static_cast<int>(kWarp) % 4;
      const int block = i / static_cast<int>(kWarp) / 4;
      const int column = block * kBlockColumns + lane / 4 * 8 + product * 2;
      Words high, low;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        Vec<float, 2> two[2] = {};
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          const int output = half * 8 + lane % 4 * 2 + k;
          if (output < gate.outputs && column < width) {
            two[k] = Vec<float, 2>::load(gate.weight + output * width + column);
          }
        }
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          const auto parts = TwoParts::of(two[0].at[k], two[1].at[k]);
          high.at[2 * half + k] = parts.high;
          low.at[2 * half + k] = parts.low;
        }
      }
      weights[block][product][0][lane] = high;
      weights[block][product][1][lane] = low;
    }
    __syncthreads();
  }

  /// Makes this warp's part of eight rows.
  __device__ void fill(const SlabGradients& gradients) {
    const auto lane = static_cast<int>(threadIdx.x % kWarp);
    const auto warp = static_cast<int>(threadIdx.x / kWarp);
    const auto first = TwoParts::of(gradients.numbers[0], gradients.numbers[1]);
    const auto second = TwoParts::of(gradients.numbers[2], gradients.numbers[3]);
    __syncwarp();
#pragma unroll 2
    for (int i = 0; i < kBlocks; ++i) {
      const int block = (i / 4 * kTeam + warp % kTeam) * 4 + i % 4;
      Words rows[2];
#pragma unroll
      for (int product = 0; product < 4; ++product) {
        const Words high_words = weights[block][product][0][lane];
        const Words low_words = weights[block][product][1][lane];
        const Fragment high{
            {high_words.at[0], high_words.at[1], high_words.at[2], high_words.at[3]}};
        const Fragment low{{low_words.at[0], low_words.at[1], low_words.at[2], low_words.at[3]}};
        float sums[4] = {};
        multiply_add(sums, low, first.high, second.high);
        multiply_add(sums, high, first.low, second.low);
        multiply_add(sums, high, first.high, second.high);
        rows[0].at[product] = pack_bf16(sums[0], sums[2]);
        rows[1].at[product] = pack_bf16(sums[1], sums[3]);
      }
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        slabs[warp][lane % 4 * 2 + k][i * 8 + lane / 4] = rows[k];
      }
    }
    __syncwarp();
  }

  /// This lane's columns in one of the eight rows.
  __device__ Words read(int row, int vector) const {
    const auto lane = static_cast<int>(threadIdx.x % kWarp);
    return slabs[threadIdx.x / kWarp][row][vector * static_cast<int>(kWarp) + lane];
  }
};

/// A gate on the way of a warp through every `step`th row from `row` on.
template <int kVectors, int kTeam, int kWarps>
class GateOnTheWay {
 public:
  using Shared = GateShared<kVectors, kTeam, kWarps>;
  static constexpr int kBytes = sizeof(Shared);

  /// Called by the whole block.
  __device__ GateOnTheWay(std::byte* shared, const GateGradient& gate, std::int64_t row,
                          std::int64_t step, std::int64_t rows, int width)
      : shared_(*reinterpret_cast<Shared*>(shared)), gate_(gate), step_(step), rows_(rows) {
    load_from(row);
    shared_.load(gate, width);
  }

  __device__ void begin(std::int64_t row) {
    turn_ = (turn_ + 1) % Shared::kRows;
    if (turn_ == 0) {
      shared_.fill(gradients_);
      load_from(row + Shared::kRows * step_);
    }
  }

  /// Adds the gate's part to the gradient of this lane's columns.
  __device__ void add_to(float (&slope)[8], int vector) const {
    const Words words = shared_.read(turn_, vector);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float2 two = unpack_bf16(words.at[k]);
      slope[2 * k] += two.x;
      slope[2 * k + 1] += two.y;
    }
  }

 private:
  __device__ void load_from(std::int64_t row) {
    gradients_ = SlabGradients::load(gate_, row + threadIdx.x % kWarp / 4 * step_, rows_);
  }

  Shared& shared_;
  const GateGradient& gate_;
  std::int64_t step_;
  std::int64_t rows_;
  SlabGradients gradients_;
  int turn_ = Shared::kRows - 1;
};

/// In its place where there is none.
struct NoGate {
  static constexpr int kBytes = 0;

  __device__ NoGate(std::byte*, const GateGradient&, std::int64_t, std::int64_t, std::int64_t,
                    int) {}
  __device__ void begin(std::int64_t) {}
  template <int kWidth>
  __device__ void add_to(float (&)[kWidth], int) const {}
};

}  // namespace carope::cuda
