#include "ops/matmul/narrow_linear.cuh"

namespace carope::cuda {
namespace {

constexpr int kThreads = kNarrowThreads;
constexpr int kWarps = kNarrowWarps;

/// Outputs whose products a kernel sums. Where there are more, others add theirs, to dx as it was
/// rounded.
constexpr int kMostOutputs = 32;

struct Input {
  const float* dy;
  const float* weight;
  std::int64_t rows;
  int columns;
  int outputs;
  int first_output;  // of those that are summed
  bool accumulate;
};

// A lane has some neighbouring columns and keeps what belongs to them in registers; a block takes
// some rows, whose dy is in shared memory.

constexpr int kInputRows = 128;  // a block

template <class T, int kColumns>
__global__ void __launch_bounds__(kThreads) input_kernel(const Input args, T* dx) {
  constexpr int kOutputs = kMostOutputs;
  const int columns = args.columns;
  __shared__ __align__(16) float stage[kInputRows * kOutputs];
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kInputRows;
  const auto count =
      static_cast<int>(min(static_cast<std::int64_t>(kInputRows), args.rows - first));
  load_stage<kOutputs>(args.dy, first, count, args.first_output, args.outputs, stage);
  __syncthreads();
  const int column = static_cast<int>(blockIdx.y * kWarp + threadIdx.x % kWarp) * kColumns;
  if (column >= columns) {
    return;
  }
  using Columns = Vec<T, kColumns>;
  constexpr int kPart = kColumns < 4 ? kColumns : 4;
  float w[kOutputs][kColumns];
#pragma unroll
  for (int o = 0; o < kOutputs; ++o) {
    const int output = args.first_output + o;
#pragma unroll
    for (int c = 0; c < kColumns; c += kPart) {
      Vec<float, kPart> part = {};
      if (output < args.outputs) {
        part = Vec<float, kPart>::load(args.weight + static_cast<std::int64_t>(output) * columns +
                                       column + c);
      }
#pragma unroll
      for (int k = 0; k < kPart; ++k) {
        w[o][c + k] = part.at[k];
      }
    }
  }
  for (int r = static_cast<int>(threadIdx.x / kWarp); r < count; r += kWarps) {
    T* to = dx + (first + r) * columns + column;
    float sum[kColumns] = {};
    if (args.accumulate) {
      const Columns old = Columns::load(to);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        sum[c] = to_float(old.at[c]);
      }
    }
#pragma unroll
    for (int o = 0; o < kOutputs; o += 4) {
      const auto d = Vec<float, 4>::load(stage + r * kOutputs + o);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
          sum[c] = fmaf(d.at[k], w[o + k][c], sum[c]);
        }
      }
    }
    Columns result;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      result.at[c] = from_float<T>(sum[c]);
    }
    result.store(to);
  }
}

// dx for bf16, on tensor cores, of two parts of dy and of W. A warp keeps the weights of 64 columns
// in registers. Columns are taken in an order that gives a lane eight neighbours of a row.

constexpr int kInputTiles = 8;     // of 16 rows, a warp
constexpr int kInputColumns = 64;  // a warp
constexpr int kHalves = kInputColumns / 32;

/// dy of 16 rows as a left factor, [16, 16 kSteps].
template <int kSteps>
struct RowGradients {
  float numbers[kSteps][8];

  __device__ static RowGradients load(const Input& args, std::int64_t row) {
    const auto lane = static_cast<int>(threadIdx.x % kWarp);
    RowGradients result;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const std::int64_t r = row + lane / 4 + k / 2 % 2 * 8;
        const int output = args.first_output + step * 16 + k / 4 * 8 + lane % 4 * 2 + k % 2;
        const bool exists = r < args.rows && output < args.outputs;
        result.numbers[step][k] = exists ? args.dy[r * args.outputs + output] : 0.0F;
      }
    }
    return result;
  }
  __device__ void split(Fragment (&high)[kSteps], Fragment (&low)[kSteps]) const {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const TwoParts two = TwoParts::of(numbers[step][2 * i], numbers[step][2 * i + 1]);
        high[step].part[i] = two.high;
        low[step].part[i] = two.low;
      }
    }
  }
};

template <int kSteps>
__global__ void __launch_bounds__(kThreads, 6 / kSteps)  // a training step's blocks all at once
    input_tensor_kernel(const Input args, bf16* dx) {
  const int columns = args.columns;
  const auto lane = static_cast<int>(threadIdx.x % kWarp);
  const std::int64_t first =
      (static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp) * kInputTiles * 16;
  const int column = static_cast<int>(blockIdx.y) * kInputColumns;
  TwoParts w[kHalves][4][kSteps][2];
#pragma unroll
  for (int part = 0; part < kHalves; ++part) {
#pragma unroll
    for (int tile = 0; tile < 4; ++tile) {
      const int c = column + part * 32 + lane / 8 * 8 + tile * 2 + lane / 4 % 2;
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int output = args.first_output + step * 16 + half * 8 + lane % 4 * 2;
          const auto at = [&](int o) {
            return o < args.outputs && c < columns
                       ? args.weight[static_cast<std::int64_t>(o) * columns + c]
                       : 0.0F;
          };
          w[part][tile][step][half] = TwoParts::of(at(output), at(output + 1));
        }
      }
    }
  }
  auto next = RowGradients<kSteps>::load(args, first);
  for (std::int64_t row = first; row < min(args.rows, first + kInputTiles * 16); row += 16) {
    Fragment high[kSteps];
    Fragment low[kSteps];
    next.split(high, low);
    next = next.load(args, row + 16);
#pragma unroll
    for (int part = 0; part < kHalves; ++part) {
      float sums[4][4] = {};
#pragma unroll
      for (int tile = 0; tile < 4; ++tile) {
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
          const TwoParts(&b)[2] = w[part][tile][step];
          multiply_add(sums[tile], high[step], b[0].low, b[1].low);
          multiply_add(sums[tile], low[step], b[0].high, b[1].high);
          multiply_add(sums[tile], high[step], b[0].high, b[1].high);
        }
      }
      const int c = column + part * 32 + lane % 4 * 8;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const std::int64_t r = row + half * 8 + lane / 4;
        if (r < args.rows && c < columns) {
          using Columns = Vec<bf16, 8>;
          bf16* to = dx + r * columns + c;
          float values[8] = {};
          if (args.accumulate) {
            unpack(Columns::load(to), values);
          }
#pragma unroll
          for (int k = 0; k < 8; ++k) {
            values[k] += sums[k / 2][2 * half + k % 2];
          }
          pack<bf16>(values).store(to);
        }
      }
    }
  }
}

/// `aligned`: four neighbours of a weight's row can be taken at once.
void launch(Context& ctx, const Input& args, const Tensor& dx, bool aligned) {
  if (dx.dtype() == DType::kBF16 && rows_align<bf16>(dx, 8)) {
    const auto kernel =
        args.outputs - args.first_output <= 16 ? input_tensor_kernel<1> : input_tensor_kernel<2>;
    const dim3 grid(blocks_for(args.rows, kWarps * kInputTiles * 16),
                    blocks_for(args.columns, kInputColumns));
    kernel<<<grid, kThreads, 0, stream_of(ctx)>>>(args, data_of<bf16>(dx));
    CUDA_CHECK_LAUNCH();
    return;
  }
  visit_float(dx.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const auto launch_plain = [&](auto lane_columns) {
      const dim3 grid(blocks_for(args.rows, kInputRows),
                      blocks_for(args.columns, lane_columns.value * kWarp));
      input_kernel<T, lane_columns.value>
          <<<grid, kThreads, 0, stream_of(ctx)>>>(args, data_of<T>(dx));
      CUDA_CHECK_LAUNCH();
    };
    if (rows_align<T>(dx, 4) && aligned) {
      launch_plain(Constant<4>{});
    } else {
      launch_plain(Constant<1>{});
    }
  });
}

}  // namespace

void narrow_backward_input(Context& ctx, const Tensor& dy, const Tensor& weight, const Tensor& dx,
                           Write write) {
  Input args{.dy = dy.f32(),
             .weight = weight.f32(),
             .rows = dx.rows(),
             .columns = static_cast<int>(dx.cols()),
             .outputs = static_cast<int>(dy.cols()),
             .first_output = 0,
             .accumulate = write == Write::kAccumulate};
  const bool aligned = rows_align<float>(weight, 4);
  for (; args.first_output < args.outputs; args.first_output += kMostOutputs) {
    launch(ctx, args, dx, aligned);
    args.accumulate = true;
  }
}

}  // namespace carope::cuda
