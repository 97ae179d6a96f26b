#include "ops/narrow_linear.cuh"

namespace carope::cuda {
namespace {

constexpr int kThreads = kNarrowThreads;
constexpr int kWarps = kNarrowWarps;

// A lane has some neighbouring columns and keeps what belongs to them in registers; a block takes
// some rows, whose dy is in shared memory.

/// dy of `count` rows, for kOutputs outputs from `first` on, those past the last one zero.
template <int kOutputs>
__device__ void load_stage(const float* dy, std::int64_t row, int count, int first, int outputs,
                           float* stage) {
  for (int i = static_cast<int>(threadIdx.x); i < count * kOutputs; i += kThreads) {
    const int output = first + i % kOutputs;
    stage[i] = output < outputs ? dy[(row + i / kOutputs) * outputs + output] : 0.0F;
  }
}

constexpr int kInputRows = 128;  // a block

template <class T, int kColumns, int kOutputs>
__global__ void __launch_bounds__(kThreads)
    input_kernel(const float* dy, const float* weight, T* dx, std::int64_t rows, int columns,
                 int outputs, bool accumulate) {
  __shared__ __align__(16) float stage[kInputRows * kOutputs];
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kInputRows;
  const auto count = static_cast<int>(min(static_cast<std::int64_t>(kInputRows), rows - first));
  load_stage<kOutputs>(dy, first, count, 0, outputs, stage);
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
#pragma unroll
    for (int c = 0; c < kColumns; c += kPart) {
      Vec<float, kPart> part = {};
      if (o < outputs) {
        part =
            Vec<float, kPart>::load(weight + static_cast<std::int64_t>(o) * columns + column + c);
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
    if (accumulate) {
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

// dx for bf16, on tensor cores. Two parts of dy and of W are enough for a result that is rounded to
// bf16: what is left out is below 2^-16 of a product. A warp keeps the weights of 64 columns in
// registers. Columns are taken in an order that gives a lane eight neighbours of a row.

constexpr int kInputTiles = 8;     // of 16 rows, a warp
constexpr int kInputColumns = 64;  // a warp
constexpr int kHalves = kInputColumns / 32;

/// The leading part of two numbers, and the one after it.
struct TwoParts {
  std::uint32_t high, low;

  __device__ static TwoParts of(float first, float second) {
    TwoParts parts;
    parts.high = take_part(first, second);
    parts.low = pack_bf16(first, second);
    return parts;
  }
};

/// dy of 16 rows as a left factor, [16, 16 kSteps].
template <int kSteps>
struct RowGradients {
  float numbers[kSteps][8];

  __device__ static RowGradients load(const float* dy, std::int64_t row, std::int64_t rows,
                                      int outputs) {
    const auto lane = static_cast<int>(threadIdx.x % kWarp);
    RowGradients result;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const std::int64_t r = row + lane / 4 + k / 2 % 2 * 8;
        const int output = step * 16 + k / 4 * 8 + lane % 4 * 2 + k % 2;
        result.numbers[step][k] = r < rows && output < outputs ? dy[r * outputs + output] : 0.0F;
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
    input_tensor_kernel(const float* dy, const float* weight, bf16* dx, std::int64_t rows,
                        int columns, int outputs, bool accumulate) {
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
          const int output = step * 16 + half * 8 + lane % 4 * 2;
          const auto at = [&](int o) {
            return o < outputs && c < columns ? weight[static_cast<std::int64_t>(o) * columns + c]
                                              : 0.0F;
          };
          w[part][tile][step][half] = TwoParts::of(at(output), at(output + 1));
        }
      }
    }
  }
  auto next = RowGradients<kSteps>::load(dy, first, rows, outputs);
  for (std::int64_t row = first; row < min(rows, first + kInputTiles * 16); row += 16) {
    Fragment high[kSteps];
    Fragment low[kSteps];
    next.split(high, low);
    next = next.load(dy, row + 16, rows, outputs);
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
        if (r < rows && c < columns) {
          using Columns = Vec<bf16, 8>;
          bf16* to = dx + r * columns + c;
          float values[8] = {};
          if (accumulate) {
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

constexpr int kSlab = 256;  // rows whose products a block sums

/// Where partial sums of a slab go: [slabs, width], a row being dW and then db.
struct Partial {
  float* sums;
  int weights;  // O C, or 0 if nobody wants them
  int width;
};

/// dyᵀ x over one slab.
template <class T, int kColumns, int kOutputs>
__global__ void __launch_bounds__(kThreads)
    weight_kernel(const T* x, const float* dy, const Partial partial, std::int64_t rows,
                  int columns, int outputs) {
  constexpr int kAhead = 4;  // rows loaded before the first is used
  __shared__ __align__(16) float stage[kSlab * kOutputs];
  static_assert(kColumns * kWarp <= kSlab, "the stage also holds a warp's sums");
  using Columns = Vec<T, kColumns>;
  const auto lane = static_cast<int>(threadIdx.x % kWarp);
  const auto warp = static_cast<int>(threadIdx.x / kWarp);
  const int column = (static_cast<int>(blockIdx.y * kWarp) + lane) * kColumns;
  const bool exists = column < columns;
  const int first_output = static_cast<int>(blockIdx.z) * kOutputs;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kSlab;
  const auto count = static_cast<int>(min(static_cast<std::int64_t>(kSlab), rows - first));
  load_stage<kOutputs>(dy, first, count, first_output, outputs, stage);
  __syncthreads();
  float sum[kOutputs][kColumns] = {};
  for (int r = warp * kAhead; exists && r < count; r += kWarps * kAhead) {
    Columns values[kAhead] = {};
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (r + k < count) {
        values[k] = Columns::load(x + (first + r + k) * columns + column);
      }
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (r + k < count) {
#pragma unroll
        for (int o = 0; o < kOutputs; o += 4) {
          const auto d = Vec<float, 4>::load(stage + (r + k) * kOutputs + o);
#pragma unroll
          for (int c = 0; c < kColumns; ++c) {
#pragma unroll
            for (int j = 0; j < 4; ++j) {
              sum[o + j][c] = fmaf(d.at[j], to_float(values[k].at[c]), sum[o + j][c]);
            }
          }
        }
      }
    }
  }
  for (int turn = 0; turn < kWarps; ++turn) {  // the warps' sums, one after the other
    __syncthreads();
    if (turn == warp) {
#pragma unroll
      for (int o = 0; o < kOutputs; ++o) {
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
          float& total = stage[(o * kColumns + c) * static_cast<int>(kWarp) + lane];
          total = turn == 0 ? sum[o][c] : total + sum[o][c];
          if (turn == kWarps - 1 && exists && first_output + o < outputs) {
            partial.sums[static_cast<std::int64_t>(blockIdx.x) * partial.width +
                         (first_output + o) * columns + column + c] = total;
          }
        }
      }
    }
  }
}

// dW for bf16, on tensor cores: dyᵀ is the left factor, split, in shared memory; each warp has 64
// columns of x, whose rows pass through its pipeline, and db is what a column of ones would have.

constexpr int kTensorSlab = 384;  // rows whose products a block sums
constexpr int kTensorOutputs = 16;
constexpr int kSteps = kTensorSlab / 16;
constexpr int kColumnTiles = kStageColumns / 8;
constexpr int kWeightBytes = kWarps * kStages * kStageBytes + kSteps * kParts *
                                                                  static_cast<int>(kWarp) *
                                                                  static_cast<int>(sizeof(Words));

/// dyᵀ of a slab as left factors [steps][parts][lanes].
__device__ void split_gradients(const float* dy, std::int64_t first, std::int64_t rows,
                                int first_output, int outputs, Words* parts) {
#pragma unroll 2
  for (int i = static_cast<int>(threadIdx.x); i < kSteps * static_cast<int>(kWarp); i += kThreads) {
    const int lane = i % static_cast<int>(kWarp);
    const int step = i / static_cast<int>(kWarp);
    float numbers[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const int output = first_output + lane / 4 + k / 2 % 2 * 8;
      const std::int64_t row = first + step * 16 + k / 4 * 8 + lane % 4 * 2 + k % 2;
      numbers[k] = output < outputs && row < rows ? dy[row * outputs + output] : 0.0F;
    }
    split(numbers, parts + step * kParts * static_cast<int>(kWarp) + lane, kWarp);
  }
}

/// A 16 x 8 tile of sums.
struct Sums {
  float leading[4] = {};
  float small[4] = {};

  /// Adds the products of 32 rows: b0 and b1 of two steps.
  __device__ void add(const Fragment (&dy)[2][kParts], const std::uint32_t (&b)[2][2]) {
    float piece[4] = {};
#pragma unroll
    for (int step = 0; step < 2; ++step) {
#pragma unroll
      for (int part = kParts - 1; part >= 0; --part) {
        multiply_add(part == 0 ? piece : small, dy[step][part], b[step][0], b[step][1]);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      leading[i] += piece[i];
    }
  }
  __device__ float at(int i) const { return leading[i] + small[i]; }
};

__global__ void __launch_bounds__(kThreads, 2)
    weight_tensor_kernel(const bf16* x, const float* dy, const Partial partial, std::int64_t rows,
                         int columns, int outputs) {
  extern __shared__ __align__(1024) std::byte shared[];
  const auto lane = static_cast<int>(threadIdx.x % kWarp);
  const auto warp = static_cast<int>(threadIdx.x / kWarp);
  const int column = (static_cast<int>(blockIdx.y) * kWarps + warp) * kStageColumns;
  const int first_output = static_cast<int>(blockIdx.z) * kTensorOutputs;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kTensorSlab;
  const auto count = static_cast<int>(min(static_cast<std::int64_t>(kTensorSlab), rows - first));
  const int stages = column < columns ? (count + kStageRows - 1) / kStageRows : 0;
  const Pipeline pipeline(shared_address(shared) + warp * kStages * kStageBytes, x, rows, columns);
  auto* parts = reinterpret_cast<Words*>(shared + kWarps * kStages * kStageBytes);
  const auto start = [&](int stage) {
    if (stage < stages) {
      pipeline.start(stage, first + stage * kStageRows, column);
    }
    close_copies();
  };
  for (int stage = 0; stage < kStages - 1; ++stage) {
    start(stage);
  }
  split_gradients(dy, first, rows, first_output, outputs, parts);
  __syncthreads();
  const bool has_bias = column == 0 && partial.width > partial.weights;
  Sums sums[kColumnTiles];
  Sums bias;
  for (int stage = 0; stage < stages; ++stage) {
    wait_for_copies<kStages - 2>();
    __syncwarp();
    start(stage + kStages - 1);
    Fragment a[2][kParts];
#pragma unroll
    for (int step = 0; step < 2; ++step) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        const Words words =
            parts[((2 * stage + step) * kParts + part) * static_cast<int>(kWarp) + lane];
        a[step][part] = {{words.at[0], words.at[1], words.at[2], words.at[3]}};
      }
    }
    const SharedRows<kStageColumns> values = pipeline.stage(stage);
#pragma unroll
    for (int two = 0; two < kColumnTiles / 2; ++two) {
      const Fragment upper = values.load_right(0, two);
      const Fragment lower = values.load_right(16, two);
      sums[2 * two].add(a, {{upper.part[0], upper.part[1]}, {lower.part[0], lower.part[1]}});
      sums[2 * two + 1].add(a, {{upper.part[2], upper.part[3]}, {lower.part[2], lower.part[3]}});
    }
    if (has_bias) {
      constexpr std::uint32_t kOnes = 0x3F803F80;
      bias.add(a, {{kOnes, kOnes}, {kOnes, kOnes}});
    }
  }
  float* to = partial.sums + static_cast<std::int64_t>(blockIdx.x) * partial.width;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int output = first_output + half * 8 + lane / 4;
    if (output < outputs) {
#pragma unroll
      for (int tile = 0; tile < kColumnTiles; ++tile) {
        const int c = column + tile * 8 + lane % 4 * 2;
        if (c < columns) {
          to[output * columns + c] = sums[tile].at(2 * half);
          to[output * columns + c + 1] = sums[tile].at(2 * half + 1);
        }
      }
      if (has_bias && lane % 4 == 0) {
        to[partial.weights + output] = bias.at(2 * half);
      }
    }
  }
}

/// Σ dy over one slab.
__global__ void __launch_bounds__(kThreads)
    bias_kernel(const float* dy, const Partial partial, std::int64_t rows, int outputs) {
  __shared__ float sums[kThreads];
  const auto output = static_cast<int>(threadIdx.x % kWarp);
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * kSlab;
  float sum = 0.0F;
  for (std::int64_t row = begin + threadIdx.x / kWarp; row < min(begin + kSlab, rows);
       row += kWarps) {
    sum += output < outputs ? dy[row * outputs + output] : 0.0F;
  }
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x < outputs) {
    for (int warp = 1; warp < kWarps; ++warp) {
      sum += sums[warp * static_cast<int>(kWarp) + output];
    }
    partial.sums[static_cast<std::int64_t>(blockIdx.x) * partial.width + partial.weights + output] =
        sum;
  }
}

constexpr int kJoiners = 8;  // threads that share the slabs of one sum

__global__ void __launch_bounds__(kWarp* kJoiners)
    join_slabs_kernel(const Partial partial, int slabs, float* dweight, float* dbias,
                      bool accumulate) {
  __shared__ float sums[kJoiners][kWarp];
  const int i = static_cast<int>(blockIdx.x * kWarp + threadIdx.x);
  float sum = 0.0F;
  if (i < partial.width) {
#pragma unroll 8
    for (int slab = static_cast<int>(threadIdx.y); slab < slabs; slab += kJoiners) {
      sum += partial.sums[static_cast<std::int64_t>(slab) * partial.width + i];
    }
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y == 0 && i < partial.width) {
    for (int joiner = 1; joiner < kJoiners; ++joiner) {
      sum += sums[joiner][threadIdx.x];
    }
    float* to = i < partial.weights ? dweight + i : dbias + (i - partial.weights);
    *to = accumulate ? *to + sum : sum;
  }
}

}  // namespace

void narrow_backward_input(Context& ctx, const Tensor& dy, const Tensor& weight, const Tensor& dx,
                           Write write) {
  check_narrow(dy.cols());
  const auto columns = static_cast<int>(dx.cols());
  const auto outputs = static_cast<int>(dy.cols());
  if (dx.dtype() == DType::kBF16 && rows_align<bf16>(dx, 8)) {
    const auto kernel = outputs <= 16 ? input_tensor_kernel<1> : input_tensor_kernel<2>;
    const dim3 grid(blocks_for(dx.rows(), kWarps * kInputTiles * 16),
                    blocks_for(columns, kInputColumns));
    kernel<<<grid, kThreads, 0, stream_of(ctx)>>>(dy.f32(), weight.f32(), data_of<bf16>(dx),
                                                  dx.rows(), columns, outputs,
                                                  write == Write::kAccumulate);
    CUDA_CHECK_LAUNCH();
    return;
  }
  visit_float(dx.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const auto launch = [&](auto lane_columns, auto most_outputs) {
      const dim3 grid(blocks_for(dx.rows(), kInputRows),
                      blocks_for(columns, lane_columns.value * kWarp));
      input_kernel<T, lane_columns.value, most_outputs.value>
          <<<grid, kThreads, 0, stream_of(ctx)>>>(dy.f32(), weight.f32(), data_of<T>(dx), dx.rows(),
                                                  columns, outputs, write == Write::kAccumulate);
      CUDA_CHECK_LAUNCH();
    };
    if (rows_align<T>(dx, 4) && rows_align<float>(weight, 4)) {
      launch(Constant<4>{}, Constant<32>{});
    } else {
      launch(Constant<1>{}, Constant<32>{});
    }
  });
}

void narrow_backward_weight(Context& ctx, const Tensor& x, const Tensor& dy, const Tensor& dweight,
                            const Tensor& dbias, Write write) {
  if (!dweight && !dbias) {
    return;
  }
  check_narrow(dy.cols());
  const auto columns = static_cast<int>(x.cols());
  const auto outputs = static_cast<int>(dy.cols());
  const std::int64_t rows = dy.rows();
  const bool tensor = dweight && x.dtype() == DType::kBF16 && rows_align<bf16>(x, 8) &&
                      shared_bytes(ctx) >= kWeightBytes;
  const unsigned slabs = blocks_for(rows, tensor ? kTensorSlab : kSlab);
  const int weights = dweight ? outputs * columns : 0;
  const int width = weights + (dbias ? outputs : 0);
  const Tensor scratch = ctx.scratch({{slabs, width}});
  const Partial partial{.sums = scratch.f32(), .weights = weights, .width = width};
  if (tensor) {
    CUDA_CHECK(cudaFuncSetAttribute(weight_tensor_kernel,
                                    cudaFuncAttributeMaxDynamicSharedMemorySize, kWeightBytes));
    const dim3 grid(slabs, blocks_for(columns, kWarps * kStageColumns),
                    blocks_for(outputs, kTensorOutputs));
    weight_tensor_kernel<<<grid, kThreads, kWeightBytes, stream_of(ctx)>>>(
        data_of<bf16>(x), dy.f32(), partial, rows, columns, outputs);
    CUDA_CHECK_LAUNCH();
  } else if (dweight) {
    visit_float(x.dtype(), [&](auto zero) {
      using T = decltype(zero);
      const auto launch = [&](auto lane_columns, auto most_outputs) {
        const dim3 grid(slabs, blocks_for(columns, lane_columns.value * kWarp),
                        blocks_for(outputs, most_outputs.value));
        weight_kernel<T, lane_columns.value, most_outputs.value>
            <<<grid, kThreads, 0, stream_of(ctx)>>>(data_of<T>(x), dy.f32(), partial, rows, columns,
                                                    outputs);
        CUDA_CHECK_LAUNCH();
      };
      if (rows_align<T>(x, 8)) {
        launch(Constant<8>{}, Constant<16>{});
      } else {
        launch(Constant<1>{}, Constant<32>{});
      }
    });
  }
  if (dbias && !tensor) {
    bias_kernel<<<slabs, kThreads, 0, stream_of(ctx)>>>(dy.f32(), partial, rows, outputs);
    CUDA_CHECK_LAUNCH();
  }
  join_slabs_kernel<<<blocks_for(width, kWarp), dim3(kWarp, kJoiners), 0, stream_of(ctx)>>>(
      partial, static_cast<int>(slabs), dweight ? dweight.f32() : nullptr,
      dbias ? dbias.f32() : nullptr, write == Write::kAccumulate);
  CUDA_CHECK_LAUNCH();
}

}  // namespace carope::cuda
