#include "ops/norm/norm_gate_cuda.h"

#include <algorithm>

#include "ops/matmul/narrow_linear.cuh"
#include "ops/norm/rows_ahead.cuh"

// Four lanes have a row between them, eight neighbouring columns of every 32 each, all in
// registers. So a warp holds eight rows just as a product on tensor cores takes its right factor,
// if the columns of 32 are counted in another order: a result goes to memory and into the product
// from where it was made. Meanwhile the warp's next rows are on their way to shared memory.
namespace carope::cuda {
namespace {

constexpr int kRows = 8;            // of a warp at a time
constexpr int kVectorColumns = 32;  // of a row: a vector of each of its four lanes
constexpr int kRowLanes = 4;
constexpr int kGroup = 4;  // outputs whose weights are eight rows of a left factor
constexpr int kMostGroups = 4;

struct Rows {
  const bf16* x;
  const float* gain;
  const float* bias;
  bf16* y;
  float* mean;
  float* rstd;
  const float* gate_weight;
  const float* gate_bias;  // or null
  float* logits;
  std::int64_t rows;
  int outputs;
};

/// What a block keeps: the norm's weights, and the gate's in two parts. Even rows of a left factor
/// have the leading parts and odd rows the others of the same outputs. Its two halves are of two
/// groups of outputs; or, where one group is left over, of that group's columns of both products of
/// a vector, of whose results half count.
template <int kVectors, int kGroups>
struct Weights {
  static constexpr int kWidth = kVectors * kVectorColumns;

  Words gate[kVectors][kGroups][kWarp];
  float gain[kWidth];
  float bias[kWidth];

  __device__ static constexpr bool is_alone(int group) {
    return kGroups % 2 == 1 && group == kGroups - 1;
  }

  /// Called by the whole block.
  __device__ void load(const Rows& args) {
    constexpr int kCount = kVectors * kGroups * static_cast<int>(kWarp);
    const auto thread = static_cast<int>(threadIdx.x);
    const auto threads = static_cast<int>(blockDim.x);
    for (int i = thread; i < kCount; i += threads) {
      const int lane = i % static_cast<int>(kWarp);
      const int group = i / static_cast<int>(kWarp) % kGroups;
      const int vector = i / static_cast<int>(kWarp) / kGroups;
      Words words;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int product = is_alone(group) ? half : group % 2;
        const int of_group = is_alone(group) ? group : group / 2 * 2 + half;
        const int output = of_group * kGroup + lane / kRowLanes / 2;
        const int column = vector * kVectorColumns + lane % kRowLanes * 8 + product * 4;
        float numbers[4] = {};
        if (output < args.outputs) {
          load_floats(args.gate_weight + output * kWidth + column, numbers);
        }
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          const auto parts = TwoParts::of(numbers[2 * k], numbers[2 * k + 1]);
          words.at[2 * k + half] = lane / kRowLanes % 2 == 0 ? parts.high : parts.low;
        }
      }
      gate[vector][group][lane] = words;
    }
    for (int c = thread; c < kWidth; c += threads) {
      gain[c] = args.gain[c];
      bias[c] = args.bias[c];
    }
    __syncthreads();
  }
};

/// The gate's results for a warp's rows.
template <int kGroups>
class Logits {
 public:
  /// Adds the products with a vector of y. Every kPiece-th joins them to the sums.
  template <class GateWeights>
  __device__ void add(const GateWeights& weights, int vector, const Words& y) {
    const auto lane = static_cast<int>(threadIdx.x % kWarp);
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const Words w = weights.gate[vector][group][lane];
      const Fragment left{{w.at[0], w.at[1], w.at[2], w.at[3]}};
      const auto multiply = [&](float(&piece)[4], int product) {
        if (vector % kPiece == 0 && (product == 0 || GateWeights::is_alone(group))) {
#pragma unroll
          for (float& value : piece) {
            value = 0.0F;
          }
        }
        multiply_add(piece, left, y.at[2 * product], y.at[2 * product + 1]);
      };
      if (GateWeights::is_alone(group)) {
        multiply(pieces_[group], 0);
        multiply(pieces_[group + 1], 1);
      } else {
        multiply(pieces_[group / 2 * 2], group % 2);
      }
      if (vector % kPiece == kPiece - 1) {
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          if (GateWeights::is_alone(group)) {
            sums_[group][k] += pieces_[group][k] + pieces_[group + 1][2 + k];
          } else if (group % 2 == 1) {
            sums_[group - 1][k] += pieces_[group - 1][k];
            sums_[group][k] += pieces_[group - 1][2 + k];
          }
        }
      }
    }
  }

  /// Of a lane's two results a group, of parts of two rows, it keeps one and gets the other part of
  /// that from the lane that has it.
  __device__ void store(const Rows& args, std::int64_t first) const {
    const auto lane = static_cast<int>(threadIdx.x % kWarp);
    const int odd = lane / kRowLanes % 2;
    const std::int64_t row = first + lane % kRowLanes * 2 + odd;
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const auto& sum = sums_[group];
      const float others = __shfl_xor_sync(kAllLanes, odd == 1 ? sum[0] : sum[1], kRowLanes);
      const int output = group * kGroup + lane / kRowLanes / 2;
      if (row < args.rows && output < args.outputs) {
        args.logits[row * args.outputs + output] =
            (odd == 1 ? sum[1] : sum[0]) + others +
            (args.gate_bias == nullptr ? 0.0F : args.gate_bias[output]);
      }
    }
  }

 private:
  static constexpr int kPiece = 4;  // vectors

  float sums_[kGroups][2] = {};
  float pieces_[kGroups + 1][4];
};

/// The sum over a row's lanes.
__device__ float row_sum(float x) {
  x += __shfl_xor_sync(kAllLanes, x, 1);
  return x + __shfl_xor_sync(kAllLanes, x, 2);
}

struct Statistics {
  float mean, rstd;

  /// In one pass, around the mean of the row's first vectors. That is at most sqrt(kVectors)
  /// deviations off, so what is subtracted from the sum of squares in the end costs few bits.
  template <int kVectors>
  __device__ static Statistics of(const RowPiece (&row)[kVectors]) {
    constexpr float kPerColumn = 1.0F / (kVectors * kVectorColumns);
    float values[8];
    unpack(row[0], values);
    const float centre = row_sum(((values[0] + values[1]) + (values[2] + values[3])) +
                                 ((values[4] + values[5]) + (values[6] + values[7]))) /
                         kVectorColumns;
    float sums[2] = {};
    float squares[2] = {};
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      unpack(row[i], values);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const float off = values[k] - centre;
        sums[k % 2] += off;
        squares[k % 2] = fmaf(off, off, squares[k % 2]);
      }
    }
    const float off = row_sum(sums[0] + sums[1]) * kPerColumn;
    const float variance = row_sum(squares[0] + squares[1]) * kPerColumn - off * off;
    return {centre + off, rsqrtf(fmaxf(variance, 0.0F) + kNormEpsilon)};
  }
};

/// One block a multiprocessor, of as many warps as its shared memory has room for rows of.
template <int kVectors, int kGroups, int kMostWarps>
__global__ void __launch_bounds__(kMostWarps* kWarp, 1) norm_gate_rows(const Rows args) {
  extern __shared__ __align__(16) std::byte shared[];
  auto& weights = *reinterpret_cast<Weights<kVectors, kGroups>*>(shared);
  constexpr int kWidth = kVectors * kVectorColumns;
  const auto lane = static_cast<int>(threadIdx.x % kWarp);
  const auto warp = static_cast<int>(threadIdx.x / kWarp);
  const int first_column = lane % kRowLanes * 8;
  const std::int64_t step = std::int64_t{gridDim.x} * (blockDim.x / kWarp) * kRows;
  // Warp by warp, so that the last rows are spread over the blocks.
  std::int64_t first = (std::int64_t{gridDim.x} * warp + blockIdx.x) * kRows;
  RowsAhead<kVectors> ahead(shared + sizeof(weights) + warp * RowsAhead<kVectors>::kBytes);
  if (first < args.rows) {
    ahead.start(args.x, first, args.rows);
  }
  weights.load(args);
  if (first >= args.rows) {
    return;
  }

  // Statistics end an iteration: in the same as their use, the compiler would keep what it unpacked
  // for them, in twice the registers.
  RowPiece x[kVectors];
  Statistics statistics;
  const auto take_rows = [&] {
    ahead.take(x);
    if (first + step < args.rows) {
      ahead.start(args.x, first + step, args.rows);
    }
    statistics = Statistics::of(x);
  };
  take_rows();
  while (true) {
    const std::int64_t row = first + lane / kRowLanes;
    if (lane % kRowLanes == 0 && row < args.rows) {
      args.mean[row] = statistics.mean;
      args.rstd[row] = statistics.rstd;
    }
    const float shift = -statistics.mean * statistics.rstd;
    Logits<kGroups> logits;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int column = i * kVectorColumns + first_column;
      float gain[8], bias[8], values[8];
      load_floats(weights.gain + column, gain);
      load_floats(weights.bias + column, bias);
      unpack(x[i], values);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        values[k] = fmaf(values[k], statistics.rstd, shift);
        values[k] = fmaf(values[k], gain[k], bias[k]);
      }
      Words y;
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        y.at[word] = pack_bf16(values[2 * word], values[2 * word + 1]);
      }
      if (row < args.rows) {
        y.store(reinterpret_cast<std::uint32_t*>(args.y + row * kWidth + column));
      }
      logits.add(weights, i, y);
    }
    logits.store(args, first);
    first += step;
    if (first >= args.rows) {
      break;
    }
    take_rows();
  }
}

/// The kernel for a width and a number of outputs: as many warps as have registers for a row.
template <int kOfVectors, int kOfGroups, int kOfWarps>
struct Kernel {
  static constexpr int kVectors = kOfVectors, kGroups = kOfGroups, kMostWarps = kOfWarps;
  static constexpr int kWeightBytes = sizeof(Weights<kVectors, kGroups>);
  static constexpr int kWarpBytes = RowsAhead<kVectors>::kBytes;

  static int warps(Context& ctx) {
    return std::min(kMostWarps, (shared_bytes(ctx) - kWeightBytes) / kWarpBytes);
  }
  static void launch(Context& ctx, const Rows& args) {
    const int bytes = kWeightBytes + warps(ctx) * kWarpBytes;
    const auto kernel = norm_gate_rows<kVectors, kGroups, kMostWarps>;
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    const unsigned blocks =
        std::min(static_cast<unsigned>(multiprocessors(ctx)), blocks_for(args.rows, kRows));
    kernel<<<blocks, warps(ctx) * kWarp, bytes, stream_of(ctx)>>>(args);
    CUDA_CHECK_LAUNCH();
  }
};

/// Calls visit(kernel) with the one that takes such a width and number of outputs, if there is one.
/// With heads of 64 columns there are as many groups as have outputs; if outputs are more, all
/// there can be.
template <class Visit>
void visit_kernel(std::int64_t width, std::int64_t outputs, const Visit& visit) {
  const auto with_groups = [&](auto vectors, auto warps) {
    constexpr int kGroups = vectors / 8;
    if (outputs <= kGroups * kGroup) {
      visit(Kernel<vectors, kGroups, warps>());
    } else if (outputs <= kMostGroups * kGroup) {
      visit(Kernel<vectors, kMostGroups, warps>());
    }
  };
  switch (width) {
    case 512:
      return with_groups(std::integral_constant<int, 16>{}, std::integral_constant<int, 16>{});
    case 768:
      return with_groups(std::integral_constant<int, 24>{}, std::integral_constant<int, 12>{});
    case 1024:
      return with_groups(std::integral_constant<int, 32>{}, std::integral_constant<int, 8>{});
    default:
      return;
  }
}

}  // namespace

bool serves_norm_with_gate(Context& ctx, const Tensor& x, const Normed& out, const NormGate& gate) {
  constexpr int kFewestWarps = 4;
  bool serves = false;
  visit_kernel(x.cols(), gate.logits.cols(),
               [&](auto kernel) { serves = kernel.warps(ctx) >= kFewestWarps; });
  return serves && x.dtype() == DType::kBF16 && aligned16(x.raw(), out.y.raw(), gate.weight.raw());
}

void norm_with_gate(Context& ctx, const Tensor& x, const NormWeights& weights, const Normed& out,
                    const NormGate& gate) {
  const Rows args{.x = data_of<bf16>(x),
                  .gain = weights.gain.f32(),
                  .bias = weights.bias.f32(),
                  .y = data_of<bf16>(out.y),
                  .mean = out.mean.f32(),
                  .rstd = out.rstd.f32(),
                  .gate_weight = gate.weight.f32(),
                  .gate_bias = gate.bias ? gate.bias.f32() : nullptr,
                  .logits = gate.logits.f32(),
                  .rows = x.rows(),
                  .outputs = static_cast<int>(gate.logits.cols())};
  visit_kernel(x.cols(), gate.logits.cols(), [&](auto kernel) { kernel.launch(ctx, args); });
}

}  // namespace carope::cuda
