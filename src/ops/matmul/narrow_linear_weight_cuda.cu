#include "ops/cuda/early_start.cuh"
#include "ops/matmul/narrow_linear.cuh"

namespace carope::cuda {
namespace {

constexpr int kThreads = kNarrowThreads;
constexpr int kWarps = kNarrowWarps;

// A lane has some neighbouring columns and keeps what belongs to them in registers; a block takes
// some rows, whose dy is in shared memory.

constexpr int kSlab = 256;  // rows whose products a block sums

/// Where partial sums of a slab go: [slabs, stride], a row being dW and then db.
struct Partial {
  float* sums;
  int weights;  // O C, or 0 if nobody wants them
  int width;
  int stride;  // even, so that two sums can be stored at once

  __device__ float* of_slab(int slab) const {
    return sums + static_cast<std::int64_t>(slab) * stride;
  }
  __device__ float* of_slab() const { return of_slab(static_cast<int>(blockIdx.x)); }
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
            partial.of_slab()[(first_output + o) * columns + column + c] = total;
          }
        }
      }
    }
  }
}

// dW for bf16, on tensor cores: dyᵀ is the left factor, split, in shared memory; each warp has 64
// columns of x, whose rows pass through its pipeline, and db is what a column of ones would have.

constexpr int kTensorOutputs = 16;
constexpr int kColumnTiles = kStageColumns / 8;

/// How a block of the tensor kernel is cut.
template <int kBlockWarps, int kRing, int kRows>
struct WeightShape {
  static constexpr int kWarps = kBlockWarps;
  static constexpr int kThreads = kWarps * static_cast<int>(kWarp);
  static constexpr int kColumns = kWarps * kStageColumns;
  static constexpr int kStages = kRing;
  static constexpr int kSlab = kRows;  // rows whose products a block sums
  static constexpr int kSteps = kSlab / 16;
  static constexpr int kCopyBytes = kWarps * Pipeline<kStages>::kBytes;
  static constexpr int kBytes =
      kCopyBytes + kSteps * kParts * static_cast<int>(kWarp) * static_cast<int>(sizeof(Words));
  static constexpr int kBlocks = kWarps > 8 ? 1 : 2;  // on a multiprocessor
  static_assert(kSlab % kStageRows == 0);
};
/// Takes GPT-2's whole width, so that dy is split once, and reads rows from end to end.
using WideShape = WeightShape<12, 3, 512>;
/// For other widths, and for less shared memory.
using SmallShape = WeightShape<4, 4, 384>;

/// dyᵀ of a slab as left factors [steps][parts][lanes].
template <class Shape>
__device__ void split_gradients(const float* dy, std::int64_t first, std::int64_t rows,
                                int first_output, int outputs, Words* parts) {
#pragma unroll 2
  for (int i = static_cast<int>(threadIdx.x); i < Shape::kSteps * static_cast<int>(kWarp);
       i += Shape::kThreads) {
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

template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    weight_tensor_kernel(const bf16* x, const float* dy, const Partial partial, std::int64_t rows,
                         int columns, int outputs) {
  extern __shared__ __align__(1024) std::byte shared[];
  constexpr int kStages = Shape::kStages;
  let_next_begin();
  const auto lane = static_cast<int>(threadIdx.x % kWarp);
  const auto warp = static_cast<int>(threadIdx.x / kWarp);
  const int column = static_cast<int>(blockIdx.y) * Shape::kColumns + warp * kStageColumns;
  const int first_output = static_cast<int>(blockIdx.z) * kTensorOutputs;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * Shape::kSlab;
  const auto count = static_cast<int>(min(static_cast<std::int64_t>(Shape::kSlab), rows - first));
  const int stages = column < columns ? (count + kStageRows - 1) / kStageRows : 0;
  const Pipeline<kStages> pipeline(shared_address(shared) + warp * Pipeline<kStages>::kBytes, x,
                                   rows, columns);
  auto* parts = reinterpret_cast<Words*>(shared + Shape::kCopyBytes);
  const auto start = [&](int stage) {
    if (stage < stages) {
      pipeline.start(stage, first + stage * kStageRows, column);
    }
    close_copies();
  };
  for (int stage = 0; stage < kStages - 1; ++stage) {
    start(stage);
  }
  split_gradients<Shape>(dy, first, rows, first_output, outputs, parts);
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
  float* to = partial.of_slab();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int output = first_output + half * 8 + lane / 4;
    if (output < outputs) {
#pragma unroll
      for (int tile = 0; tile < kColumnTiles; ++tile) {
        const int c = column + tile * 8 + lane % 4 * 2;
        if (c < columns) {
          Vec<float, 2>{{sums[tile].at(2 * half), sums[tile].at(2 * half + 1)}}.store(
              to + output * columns + c);
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
  const auto lane = static_cast<int>(threadIdx.x % kWarp);
  const int output = static_cast<int>(blockIdx.y * kWarp) + lane;
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * kSlab;
  float sum = 0.0F;
  for (std::int64_t row = begin + threadIdx.x / kWarp; row < min(begin + kSlab, rows);
       row += kWarps) {
    sum += output < outputs ? dy[row * outputs + output] : 0.0F;
  }
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x < kWarp && output < outputs) {
    for (int warp = 1; warp < kWarps; ++warp) {
      sum += sums[warp * static_cast<int>(kWarp) + lane];
    }
    partial.of_slab()[partial.weights + output] = sum;
  }
}

constexpr int kJoiners = 8;  // threads that share the slabs of one sum

__global__ void __launch_bounds__(kWarp* kJoiners)
    join_slabs_kernel(const Partial partial, int slabs, float* dweight, float* dbias,
                      bool accumulate) {
  __shared__ float sums[kJoiners][kWarp];
  wait_for_previous();
  const int i = static_cast<int>(blockIdx.x * kWarp + threadIdx.x);
  float sum = 0.0F;
  if (i < partial.width) {
#pragma unroll 8
    for (int slab = static_cast<int>(threadIdx.y); slab < slabs; slab += kJoiners) {
      sum += partial.of_slab(slab)[i];
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

/// Whether blocks of which a multiprocessor has one keep nearly all of them busy to the end.
bool fill_device(const Context& ctx, std::int64_t blocks) {
  const std::int64_t there = multiprocessors(ctx);
  return blocks * 10 >= ceil_div(blocks, there) * there * 9;
}

/// The layer's factors, and how they are cut.
struct Problem {
  const Tensor& x;
  const Tensor& dy;
  std::int64_t rows = dy.rows();
  int columns = static_cast<int>(x.cols());
  int outputs = static_cast<int>(dy.cols());

  dim3 grid(int slab, int block_columns, int block_outputs) const {
    return {blocks_for(rows, slab), blocks_for(columns, block_columns),
            blocks_for(outputs, block_outputs)};
  }
  template <class Shape>
  dim3 grid() const {
    return grid(Shape::kSlab, Shape::kColumns, kTensorOutputs);
  }
};

/// Which kernel computes dW.
enum class Way : std::uint8_t { kPlain, kSmall, kWide };

Way way_of(const Context& ctx, const Problem& p) {
  if (p.x.dtype() != DType::kBF16 || !rows_align<bf16>(p.x, 8)) {
    return Way::kPlain;
  }
  const int bytes = shared_bytes(ctx);
  const dim3 wide = p.grid<WideShape>();
  if (bytes >= WideShape::kBytes && p.columns % WideShape::kColumns == 0 &&
      fill_device(ctx, static_cast<std::int64_t>(wide.x) * wide.y * wide.z)) {
    return Way::kWide;
  }
  return bytes >= SmallShape::kBytes ? Way::kSmall : Way::kPlain;
}

template <class Shape>
void launch_tensor(Context& ctx, const Problem& p, const Partial& partial) {
  const auto kernel = weight_tensor_kernel<Shape>;
  CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::kBytes));
  kernel<<<p.grid<Shape>(), Shape::kThreads, Shape::kBytes, stream_of(ctx)>>>(
      data_of<bf16>(p.x), p.dy.f32(), partial, p.rows, p.columns, p.outputs);
  CUDA_CHECK_LAUNCH();
}

template <class T, int kColumns, int kOutputs>
void launch_plain(Context& ctx, const Problem& p, const Partial& partial) {
  weight_kernel<T, kColumns, kOutputs>
      <<<p.grid(kSlab, kColumns * kWarp, kOutputs), kThreads, 0, stream_of(ctx)>>>(
          data_of<T>(p.x), p.dy.f32(), partial, p.rows, p.columns, p.outputs);
  CUDA_CHECK_LAUNCH();
}

}  // namespace

void narrow_backward_weight(Context& ctx, const Tensor& x, const Tensor& dy, const Tensor& dweight,
                            const Tensor& dbias, Write write) {
  if (!dweight && !dbias) {
    return;
  }
  const Problem p{.x = x, .dy = dy};
  const Way way = dweight ? way_of(ctx, p) : Way::kPlain;
  const int slab = way == Way::kWide    ? WideShape::kSlab
                   : way == Way::kSmall ? SmallShape::kSlab
                                        : kSlab;
  const unsigned slabs = blocks_for(p.rows, slab);
  const int weights = dweight ? p.outputs * p.columns : 0;
  const int width = weights + (dbias ? p.outputs : 0);
  const int stride = (width + 1) / 2 * 2;
  const Tensor scratch = ctx.scratch({{slabs, stride}});
  const Partial partial{
      .sums = scratch.f32(), .weights = weights, .width = width, .stride = stride};
  if (way == Way::kWide) {
    launch_tensor<WideShape>(ctx, p, partial);
  } else if (way == Way::kSmall) {
    launch_tensor<SmallShape>(ctx, p, partial);
  } else if (dweight) {
    visit_float(x.dtype(), [&](auto zero) {
      using T = decltype(zero);
      const bool aligned = rows_align<T>(x, 8);
      (aligned ? launch_plain<T, 8, 16> : launch_plain<T, 1, 32>)(ctx, p, partial);
    });
  }
  if (dbias && way == Way::kPlain) {
    const dim3 grid(slabs, blocks_for(p.outputs, kWarp));
    bias_kernel<<<grid, kThreads, 0, stream_of(ctx)>>>(dy.f32(), partial, p.rows, p.outputs);
    CUDA_CHECK_LAUNCH();
  }
  launch_early(ctx, join_slabs_kernel, dim3(blocks_for(width, kWarp)), dim3(kWarp, kJoiners),
               partial, static_cast<int>(slabs), dweight ? dweight.f32() : nullptr,
               dbias ? dbias.f32() : nullptr, write == Write::kAccumulate);
}

}  // namespace carope::cuda
