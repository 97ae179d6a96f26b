#include "ops/norm_gate_cuda.h"

#include <algorithm>

#include "ops/narrow_linear.cuh"

// Four lanes have a row between them, eight neighbouring columns of every 32 each, all in
// registers. So a warp holds eight rows just as a product on tensor cores takes its right factor,
// if the columns of 32 are counted in another order: a result goes to memory and into the product
// from where it was made. The register it leaves gets the same columns of the next rows, which are
// on their way while these are computed.
namespace carope::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * static_cast<int>(kWarp);
constexpr int kVectorColumns = 32;  // of a row: a vector of each of its four lanes
constexpr int kMostOutputs = 16;
constexpr int kRowLanes = 4;

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

/// What a block keeps: the gate's weights in three parts, as left factors, and the norm's.
template <int kVectors>
struct Weights {
  static constexpr int kWidth = kVectors * kVectorColumns;

  Words parts[kVectors][2][kParts][kWarp];
  float gain[kWidth];
  float bias[kWidth];

  /// Called by the whole block.
  __device__ void load(const Rows& args) {
    for (int i = static_cast<int>(threadIdx.x); i < kVectors * 2 * static_cast<int>(kWarp);
         i += kThreads) {
      const int lane = i % static_cast<int>(kWarp);
      const int product = i / static_cast<int>(kWarp) % 2;
      const int vector = i / static_cast<int>(kWarp) / 2;
      const int column = vector * kVectorColumns + lane % kRowLanes * 8 + product * 4;
      float numbers[8] = {};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int output = half * 8 + lane / kRowLanes;
        if (output < args.outputs) {
          const auto four = Vec<float, 4>::load(args.gate_weight + output * kWidth + column);
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            numbers[k / 2 * 4 + half * 2 + k % 2] = four.at[k];
          }
        }
      }
      split(numbers, &parts[vector][product][0][lane], kWarp);
    }
    for (int c = static_cast<int>(threadIdx.x); c < kWidth; c += kThreads) {
      gain[c] = args.gain[c];
      bias[c] = args.bias[c];
    }
    __syncthreads();
  }
};

using Columns = RawRow<bf16, 8>;  // a vector

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
  __device__ static Statistics of(const Columns (&row)[kVectors]) {
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

/// One block a multiprocessor; a warp takes 8 kHalves rows at a time, of which a lane has kHalves,
/// eight apart.
template <int kVectors, int kHalves>
__global__ void __launch_bounds__(kThreads, 1) norm_gate_rows(const Rows args) {
  extern __shared__ __align__(16) std::byte shared[];
  auto& weights = *reinterpret_cast<Weights<kVectors>*>(shared);
  constexpr int kWidth = Weights<kVectors>::kWidth;
  const auto lane = static_cast<int>(threadIdx.x % kWarp);
  const auto warp = static_cast<int>(threadIdx.x / kWarp);
  const int first_column = lane % kRowLanes * 8;
  const std::int64_t step = std::int64_t{gridDim.x} * kWarps * 8 * kHalves;
  std::int64_t row = (std::int64_t{blockIdx.x} * kWarps + warp) * 8 * kHalves + lane / kRowLanes;
  Columns x[kHalves][kVectors];
  // Past the last row, that one once more.
  const auto load = [&](std::int64_t from_row, int half, int i) {
    const std::int64_t from = min(from_row + half * 8, args.rows - 1);
    x[half][i] = Columns::load(args.x + from * kWidth + first_column + i * kVectorColumns);
  };
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      load(row, half, i);
    }
  }
  weights.load(args);
  if (row - lane / kRowLanes >= args.rows) {
    return;
  }

  // Statistics end an iteration: in the same as their use, the compiler would keep what it unpacked
  // for them, in twice the registers.
  Statistics statistics[kHalves];
  const auto take_statistics = [&] {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      statistics[half] = Statistics::of(x[half]);
    }
  };
  take_statistics();
  while (true) {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      if (lane % kRowLanes == 0 && row + half * 8 < args.rows) {
        args.mean[row + half * 8] = statistics[half].mean;
        args.rstd[row + half * 8] = statistics[half].rstd;
      }
    }
    float sum[kHalves][4] = {};
    float small[kHalves][4] = {};
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int column = i * kVectorColumns + first_column;
      float gain[8], bias[8];
      load_floats(weights.gain + column, gain);
      load_floats(weights.bias + column, bias);
      Words y[kHalves];
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        float values[8];
        unpack(x[half][i], values);
        load(row + step, half, i);
        const float shift = -statistics[half].mean * statistics[half].rstd;
#pragma unroll
        for (int k = 0; k < 8; ++k) {
          values[k] = fmaf(values[k], statistics[half].rstd, shift);
          values[k] = fmaf(values[k], gain[k], bias[k]);
        }
#pragma unroll
        for (int word = 0; word < 4; ++word) {
          y[half].at[word] = pack_bf16(values[2 * word], values[2 * word + 1]);
        }
        if (row + half * 8 < args.rows) {
          y[half].store(
              reinterpret_cast<std::uint32_t*>(args.y + (row + half * 8) * kWidth + column));
        }
      }
      float piece[kHalves][4] = {};
#pragma unroll
      for (int part = kParts - 1; part >= 0; --part) {
#pragma unroll
        for (int product = 0; product < 2; ++product) {
          const Words w = weights.parts[i][product][part][lane];
          const Fragment left{{w.at[0], w.at[1], w.at[2], w.at[3]}};
#pragma unroll
          for (int half = 0; half < kHalves; ++half) {
            multiply_add(part == 0 ? piece[half] : small[half], left, y[half].at[2 * product],
                         y[half].at[2 * product + 1]);
          }
        }
      }
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          sum[half][k] += piece[half][k];
        }
      }
    }
    const std::int64_t first = row - lane / kRowLanes + lane % kRowLanes * 2;
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const std::int64_t to = first + half * 8 + k % 2;
        const int output = k / 2 * 8 + lane / kRowLanes;
        if (to < args.rows && output < args.outputs) {
          args.logits[to * args.outputs + output] =
              sum[half][k] + small[half][k] +
              (args.gate_bias == nullptr ? 0.0F : args.gate_bias[output]);
        }
      }
    }
    row += step;
    if (row - lane / kRowLanes >= args.rows) {
      break;
    }
    take_statistics();
  }
}

template <int kVectors, int kHalves>
bool launch(Context& ctx, const Rows& args) {
  constexpr int kBytes = sizeof(Weights<kVectors>);
  if (kBytes > shared_bytes(ctx)) {
    return false;
  }
  const auto kernel = norm_gate_rows<kVectors, kHalves>;
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  const unsigned blocks = std::min(static_cast<unsigned>(multiprocessors(ctx)),
                                   blocks_for(args.rows, kWarps * 8 * kHalves));
  kernel<<<blocks, kThreads, kBytes, stream_of(ctx)>>>(args);
  CUDA_CHECK_LAUNCH();
  return true;
}

}  // namespace

bool norm_with_gate(Context& ctx, const Tensor& x, const NormWeights& weights, const Normed& out,
                    const NormGate& gate) {
  if (x.dtype() != DType::kBF16 || gate.logits.cols() > kMostOutputs ||
      !aligned16(x.raw(), out.y.raw(), gate.weight.raw())) {
    return false;
  }
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
  switch (x.cols()) {  // a lane has two rows where they fit into its registers
    case 512:
      return launch<16, 2>(ctx, args);
    case 768:
      return launch<24, 2>(ctx, args);
    case 1024:
      return launch<32, 1>(ctx, args);
    default:
      return false;
  }
}

}  // namespace carope::cuda
