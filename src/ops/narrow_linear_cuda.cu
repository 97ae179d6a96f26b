#include "ops/narrow_linear.cuh"

namespace carope::cuda {
namespace {

constexpr int kThreads = kNarrowThreads;
constexpr int kWarps = kNarrowWarps;

// Forward for bf16, on tensor cores: x is exactly bf16, and a weight is exactly the sum of three
// bf16 numbers. Columns are taken 32 at a time, eight neighbours a lane, in an order that lets a
// lane load its operands with one access: a sum does not mind.

constexpr int kParts = 3;
constexpr int kTileRows = 16;
constexpr int kTileOutputs = 8;
constexpr int kTileColumns = 32;
constexpr int kLaneColumns = 8;

/// Eight bf16 numbers, two a word.
using Fragment = Vec<std::uint32_t, 4>;

__device__ std::uint32_t pack(float low, float high) {
  const __nv_bfloat162 two = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&two);
}

/// Splits the weights into fragments [C / 32, tiles of outputs, parts, lanes].
__global__ void split_kernel(const float* weight, int outputs, int columns, int tiles,
                             Fragment* fragments) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const int lane = i % static_cast<int>(kWarp);
  const int tile = i / static_cast<int>(kWarp) % tiles;
  const int step = i / static_cast<int>(kWarp) / tiles;
  if (step * kTileColumns >= columns) {
    return;
  }
  const int output = tile * kTileOutputs + lane / 4;
  const float* from = weight + output * columns + step * kTileColumns + lane % 4 * kLaneColumns;
  float rest[kLaneColumns];
#pragma unroll
  for (int k = 0; k < kLaneColumns; ++k) {
    rest[k] = output < outputs ? from[k] : 0.0F;
  }
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    Fragment fragment;
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      fragment.at[word] = pack(rest[2 * word], rest[2 * word + 1]);
      rest[2 * word] -= __uint_as_float(fragment.at[word] << 16);
      rest[2 * word + 1] -= __uint_as_float(fragment.at[word] & 0xFFFF0000U);
    }
    fragments[((step * tiles + tile) * kParts + part) * static_cast<int>(kWarp) + lane] = fragment;
  }
}

/// sum += a b for a [16, 16] and b [16, 8] in the tensor cores' layout.
__device__ void multiply_add(float (&sum)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                             std::uint32_t a3, std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/// Sixteen rows a warp. Tensor cores cut off what they add: so the leading parts are summed in
/// short pieces, which ordinary additions join.
template <int kTiles>
__global__ void __launch_bounds__(kThreads)
    forward_tensor_kernel(const bf16* x, const Fragment* weight, const float* bias, float* y,
                          std::int64_t rows, int columns, int outputs) {
  const auto lane = static_cast<int>(threadIdx.x % kWarp);
  const std::int64_t warp = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  const std::int64_t upper = warp * kTileRows + lane / 4;
  const std::int64_t lower = upper + kTileRows / 2;
  const auto row_at = [&](std::int64_t row) {
    return reinterpret_cast<const std::uint32_t*>(x + min(row, rows - 1) * columns +
                                                  lane % 4 * kLaneColumns);
  };
  const std::uint32_t* x_upper = row_at(upper);
  const std::uint32_t* x_lower = row_at(lower);
  float sum[kTiles][4] = {};
  float small[kTiles][4] = {};
#pragma unroll 4
  for (int step = 0; step < columns / kTileColumns; ++step) {
    const Fragment a = Fragment::load(x_upper + step * kTileColumns / 2);
    const Fragment b = Fragment::load(x_lower + step * kTileColumns / 2);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const Fragment* w = weight + (step * kTiles + tile) * kParts * static_cast<int>(kWarp) + lane;
      float piece[4] = {};
#pragma unroll
      for (int part = kParts - 1; part >= 0; --part) {
        const Fragment c = w[part * static_cast<int>(kWarp)];
        float(&target)[4] = part == 0 ? piece : small[tile];
        multiply_add(target, a.at[0], b.at[0], a.at[1], b.at[1], c.at[0], c.at[1]);
        multiply_add(target, a.at[2], b.at[2], a.at[3], b.at[3], c.at[2], c.at[3]);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sum[tile][i] += piece[i];
      }
    }
  }
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::int64_t row = i < 2 ? upper : lower;
      const int output = tile * kTileOutputs + lane % 4 * 2 + i % 2;
      if (row < rows && output < outputs) {
        y[row * outputs + output] =
            sum[tile][i] + small[tile][i] + (bias == nullptr ? 0.0F : bias[output]);
      }
    }
  }
}

constexpr int kPlainRows = 4;
constexpr int kPlainOutputs = 8;

/// Four rows and eight outputs a warp, whose lanes share the columns.
template <class T>
__global__ void __launch_bounds__(kThreads)
    forward_plain_kernel(const T* x, const float* weight, const float* bias, float* y,
                         std::int64_t rows, int columns, int outputs) {
  const auto lane = static_cast<int>(threadIdx.x % kWarp);
  const std::int64_t first =
      (static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp) * kPlainRows;
  const int first_output = static_cast<int>(blockIdx.y) * kPlainOutputs;
  float sum[kPlainRows][kPlainOutputs] = {};
  for (int c = lane; c < columns; c += static_cast<int>(kWarp)) {
    float value[kPlainRows];
#pragma unroll
    for (int r = 0; r < kPlainRows; ++r) {
      value[r] = to_float(x[min(first + r, rows - 1) * columns + c]);
    }
#pragma unroll
    for (int o = 0; o < kPlainOutputs; ++o) {
      const float w =
          weight[static_cast<std::int64_t>(min(first_output + o, outputs - 1)) * columns + c];
#pragma unroll
      for (int r = 0; r < kPlainRows; ++r) {
        sum[r][o] = fmaf(value[r], w, sum[r][o]);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kPlainRows; ++r) {
#pragma unroll
    for (int o = 0; o < kPlainOutputs; ++o) {
      const float total = warp_sum(sum[r][o]);
      const int output = first_output + o;
      if (lane == 0 && first + r < rows && output < outputs) {
        y[(first + r) * outputs + output] = total + (bias == nullptr ? 0.0F : bias[output]);
      }
    }
  }
}

template <class T>
void forward_plain(Context& ctx, const Tensor& x, const Tensor& weight, const float* bias,
                   const Tensor& y) {
  const dim3 grid(blocks_for(x.rows(), kWarps * kPlainRows), blocks_for(y.cols(), kPlainOutputs));
  forward_plain_kernel<<<grid, kThreads, 0, stream_of(ctx)>>>(
      data_of<T>(x), weight.f32(), bias, y.f32(), x.rows(), static_cast<int>(x.cols()),
      static_cast<int>(y.cols()));
  CUDA_CHECK_LAUNCH();
}

void forward_tensor(Context& ctx, const Tensor& x, const Tensor& weight, const float* bias,
                    const Tensor& y) {
  const auto columns = static_cast<int>(x.cols());
  const auto outputs = static_cast<int>(y.cols());
  const auto launch = [&](auto tiles) {
    const std::int64_t lanes = columns / kTileColumns * tiles.value * kWarp;
    const Tensor scratch = ctx.scratch(
        {{lanes * kParts * (static_cast<std::int64_t>(sizeof(Fragment)) / 4)}, DType::kU32});
    auto* fragments = static_cast<Fragment*>(scratch.raw());
    split_kernel<<<blocks_for(lanes, kThreads), kThreads, 0, stream_of(ctx)>>>(
        weight.f32(), outputs, columns, tiles.value, fragments);
    CUDA_CHECK_LAUNCH();
    forward_tensor_kernel<tiles.value>
        <<<blocks_for(x.rows(), kWarps * kTileRows), kThreads, 0, stream_of(ctx)>>>(
            data_of<bf16>(x), fragments, bias, y.f32(), x.rows(), columns, outputs);
    CUDA_CHECK_LAUNCH();
  };
  if (outputs <= kTileOutputs) {
    launch(Constant<1>{});
  } else if (outputs <= 2 * kTileOutputs) {
    launch(Constant<2>{});
  } else {
    launch(Constant<4>{});
  }
}

}  // namespace

void narrow_linear(Context& ctx, const Tensor& x, const Tensor& weight, const Tensor& bias,
                   const Tensor& y) {
  check_narrow(y.cols());
  const float* b = bias ? bias.f32() : nullptr;
  if (x.dtype() == DType::kBF16 && x.cols() % kTileColumns == 0 &&
      rows_align<bf16>(x, kLaneColumns)) {
    forward_tensor(ctx, x, weight, b, y);
  } else {
    visit_float(x.dtype(), [&](auto zero) { forward_plain<decltype(zero)>(ctx, x, weight, b, y); });
  }
}

}  // namespace carope::cuda
