#include "ops/norm.h"

#include <algorithm>
#include <type_traits>

#include "ops/early_start.cuh"

// A warp has a row, in registers where the width is a common one: lane i holds the vectors i,
// i + 32, ... of the row, so that mean and variance take two passes over registers and none over
// memory. Rows of other widths are read several times, element by element.
namespace carope::cuda {
namespace {

constexpr int kRows = 4;  // of a block, where each warp has one
constexpr int kThreads = kRows * kWarp;
constexpr int kShareThreads = kWarp * kWarp;

/// Calls visit(i, column) for this lane's vectors: the i-th has the elements from `column` on.
template <class T, int kVectors, class Visit>
__device__ void for_each_vector(int width, const Visit& visit) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int column = (i * static_cast<int>(kWarp) + lane) * kLanesOf<T>;
    if (column < width) {
      visit(i, column);
    }
  }
}

/// Calls launch(vectors) with the number of a lane's vectors, a constant, if the row fits into
/// registers; otherwise returns false.
template <class T, class Launch>
bool with_vectors(std::int64_t width, const Launch& launch) {
  const auto fits = [&](auto widest) {
    constexpr int kColumns = kWarp * kLanesOf<T>;  // of a warp's vectors
    if (width <= widest) {
      launch(std::integral_constant<int, (widest + kColumns - 1) / kColumns>{});
      return true;
    }
    return false;
  };
  return width % kLanesOf<T> == 0 &&
         (fits(std::integral_constant<int, 512>{}) || fits(std::integral_constant<int, 768>{}) ||
          fits(std::integral_constant<int, 1024>{}) || fits(std::integral_constant<int, 1600>{}));
}

template <class T>
struct Forward {
  const T* x;
  const T* branch;  // added to x
  T* sum;           // gets the result; may be x
  const float* gain;
  const float* bias;
  T* y;
  float* mean;
  float* rstd;
  std::int64_t rows;
  int width;
};

__device__ float rstd_of(float squares, int width) {
  return rsqrtf(squares / static_cast<float>(width) + kNormEpsilon);
}

/// What is normalised is the sum as it is stored, rounded to T: the backward pass reads it again.
template <class T, int kVectors, bool kAdd>
__global__ void __launch_bounds__(kThreads) norm_rows(const Forward<T> args) {
  constexpr int kWidth = kLanesOf<T>;
  const std::int64_t row = std::int64_t{blockIdx.x} * kRows + threadIdx.x / kWarp;
  let_next_begin();
  if (row >= args.rows) {
    return;
  }
  if (args.rows <= kRows) {
    for_each_vector<T, kVectors>(args.width, [&](int, int column) {
      ask_for(args.gain + column);
      ask_for(args.bias + column);
    });
  }
  wait_for_previous();
  const std::int64_t start = row * args.width;
  Vec<T, kWidth> x[kVectors];
  for_each_vector<T, kVectors>(
      args.width, [&](int i, int column) { x[i] = Vec<T, kWidth>::load(args.x + start + column); });
  if constexpr (kAdd) {
    Vec<T, kWidth> branch[kVectors];
    for_each_vector<T, kVectors>(args.width, [&](int i, int column) {
      branch[i] = Vec<T, kWidth>::load(args.branch + start + column);
    });
    for_each_vector<T, kVectors>(args.width, [&](int i, int column) {
      float total[kWidth], added[kWidth];
      unpack(x[i], total);
      unpack(branch[i], added);
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
        total[k] += added[k];
      }
      x[i] = pack<T>(total);
      x[i].store(args.sum + start + column);
    });
  }

  float sum = 0.0F;
  for_each_vector<T, kVectors>(args.width, [&](int i, int) {
    float values[kWidth];
    unpack(x[i], values);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      sum += values[k];
    }
  });
  const float mean = warp_sum(sum) / static_cast<float>(args.width);
  float squares = 0.0F;
  for_each_vector<T, kVectors>(args.width, [&](int i, int) {
    float values[kWidth];
    unpack(x[i], values);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      const float centred = values[k] - mean;
      squares += centred * centred;
    }
  });
  const float rstd = rstd_of(warp_sum(squares), args.width);
  for_each_vector<T, kVectors>(args.width, [&](int i, int column) {
    float values[kWidth], gain[kWidth], bias[kWidth];
    unpack(x[i], values);
    load_floats(args.gain + column, gain);
    load_floats(args.bias + column, bias);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      values[k] = (values[k] - mean) * rstd * gain[k] + bias[k];
    }
    pack<T>(values).store(args.y + start + column);
  });
  if (threadIdx.x % kWarp == 0) {
    args.mean[row] = mean;
    args.rstd[row] = rstd;
  }
}

template <class T, bool kAdd>
__global__ void __launch_bounds__(kThreads) norm_rows_plain(const Forward<T> args) {
  const std::int64_t row = std::int64_t{blockIdx.x} * kRows + threadIdx.x / kWarp;
  let_next_begin();
  wait_for_previous();
  if (row >= args.rows) {
    return;
  }
  const int lane = threadIdx.x % kWarp;
  const std::int64_t start = row * args.width;
  const T* x = (kAdd ? args.sum : args.x) + start;
  float sum = 0.0F;
  for (int c = lane; c < args.width; c += kWarp) {
    if constexpr (kAdd) {
      args.sum[start + c] =
          from_float<T>(to_float(args.x[start + c]) + to_float(args.branch[start + c]));
    }
    sum += to_float(x[c]);
  }
  const float mean = warp_sum(sum) / static_cast<float>(args.width);
  float squares = 0.0F;
  for (int c = lane; c < args.width; c += kWarp) {
    const float centred = to_float(x[c]) - mean;
    squares += centred * centred;
  }
  const float rstd = rstd_of(warp_sum(squares), args.width);
  for (int c = lane; c < args.width; c += kWarp) {
    args.y[start + c] = from_float<T>((to_float(x[c]) - mean) * rstd * args.gain[c] + args.bias[c]);
  }
  if (lane == 0) {
    args.mean[row] = mean;
    args.rstd[row] = rstd;
  }
}

template <class T, bool kAdd>
void forward(Context& ctx, const Forward<T>& args) {
  const auto run = [&](auto* kernel) {
    const auto blocks = static_cast<unsigned>(ceil_div<std::int64_t>(args.rows, kRows));
    launch_early(ctx, kernel, dim3(blocks), kThreads, args);
  };
  const bool aligned = aligned16(args.x, args.branch, args.sum, args.gain, args.bias, args.y);
  if (!aligned ||
      !with_vectors<T>(args.width, [&](auto vectors) { run(norm_rows<T, vectors, kAdd>); })) {
    run(norm_rows_plain<T, kAdd>);
  }
}

template <class T>
Forward<T> forward_args(const Tensor& x, const NormWeights& weights, const Normed& out) {
  return {.x = data_of<T>(x),
          .branch = nullptr,
          .sum = nullptr,
          .gain = weights.gain.f32(),
          .bias = weights.bias.f32(),
          .y = data_of<T>(out.y),
          .mean = out.mean.f32(),
          .rstd = out.rstd.f32(),
          .rows = x.rows(),
          .width = static_cast<int>(x.cols())};
}

template <class T>
struct Backward {
  const T* dy;
  const T* x;
  const float* mean;
  const float* rstd;
  const float* gain;
  T* dx;
  float* shares;  // [shares, 2, width] parts of dgain and dbias
  std::int64_t rows;
  int width;
};

/// What a lane holds: its columns of dgain and dbias, and of a row's dy, x and dx.
template <class T, int kVectors>
inline constexpr int kBackwardRegisters = (2 * 4 + 3 * sizeof(T)) * kVectors* kLanesOf<T> / 4;
/// As many threads as one multiprocessor has registers for.
template <class T, int kVectors>
inline constexpr int kBackwardThreads = kBackwardRegisters<T, kVectors> <= 88    ? 512
                                        : kBackwardRegisters<T, kVectors> <= 120 ? 384
                                                                                 : 256;

/// One block a multiprocessor. Its warps go through the rows with their lanes' columns of dgain and
/// dbias in registers, and add them up at the end, one warp after the other.
template <class T, int kVectors>
__global__ void __launch_bounds__(kBackwardThreads<T, kVectors>, 1)
    backward_rows(const Backward<T> args) {
  constexpr int kWidth = kLanesOf<T>;
  constexpr int kWarps = kBackwardThreads<T, kVectors> / kWarp;
  const int warp = threadIdx.x / kWarp;
  const int width = args.width;
  float dgain[kVectors][kWidth] = {};
  float dbias[kVectors][kWidth] = {};
  for (std::int64_t row = std::int64_t{blockIdx.x} * kWarps + warp; row < args.rows;
       row += std::int64_t{gridDim.x} * kWarps) {
    const std::int64_t start = row * width;
    Vec<T, kWidth> dy[kVectors], x[kVectors], dx[kVectors];
    for_each_vector<T, kVectors>(width, [&](int i, int column) {
      dy[i] = Vec<T, kWidth>::load(args.dy + start + column);
      x[i] = Vec<T, kWidth>::load(args.x + start + column);
    });
    for_each_vector<T, kVectors>(
        width, [&](int i, int column) { dx[i] = Vec<T, kWidth>::load(args.dx + start + column); });
    const float mean = args.mean[row];
    const float rstd = args.rstd[row];
    float sum_d = 0.0F;
    float sum_dx = 0.0F;
    for_each_vector<T, kVectors>(width, [&](int i, int column) {
      float slope[kWidth], normed[kWidth], gain[kWidth];
      unpack(dy[i], slope);
      unpack(x[i], normed);
      load_floats(args.gain + column, gain);
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
        normed[k] = (normed[k] - mean) * rstd;
        dgain[i][k] += slope[k] * normed[k];
        dbias[i][k] += slope[k];
        sum_d += slope[k] * gain[k];
        sum_dx += slope[k] * gain[k] * normed[k];
      }
    });
    const float mean_d = warp_sum(sum_d) / static_cast<float>(width);
    const float mean_dx = warp_sum(sum_dx) / static_cast<float>(width);
    for_each_vector<T, kVectors>(width, [&](int i, int column) {
      float slope[kWidth], normed[kWidth], gain[kWidth], total[kWidth];
      unpack(dy[i], slope);
      unpack(x[i], normed);
      unpack(dx[i], total);
      load_floats(args.gain + column, gain);
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
        normed[k] = (normed[k] - mean) * rstd;
        total[k] += (slope[k] * gain[k] - mean_d - normed[k] * mean_dx) * rstd;
      }
      pack<T>(total).store(args.dx + start + column);
    });
  }

  extern __shared__ float share[];  // [2, width]
  for (int turn = 0; turn < kWarps; ++turn) {
    if (warp == turn) {
      for_each_vector<T, kVectors>(width, [&](int i, int column) {
#pragma unroll
        for (int k = 0; k < kWidth; ++k) {
          float* to = share + column + k;
          to[0] = turn == 0 ? dgain[i][k] : to[0] + dgain[i][k];
          to[width] = turn == 0 ? dbias[i][k] : to[width] + dbias[i][k];
        }
      });
    }
    __syncthreads();
  }
  float* to = args.shares + std::int64_t{blockIdx.x} * 2 * width;
  for (int c = threadIdx.x; c < 2 * width; c += kWarps * kWarp) {
    to[c] = share[c];
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) dx_rows_plain(const Backward<T> args) {
  const std::int64_t row = std::int64_t{blockIdx.x} * kRows + threadIdx.x / kWarp;
  if (row >= args.rows) {
    return;
  }
  const int lane = threadIdx.x % kWarp;
  const T* dy = args.dy + row * args.width;
  const T* x = args.x + row * args.width;
  T* dx = args.dx + row * args.width;
  const float mean = args.mean[row];
  const float rstd = args.rstd[row];
  float sum_d = 0.0F;
  float sum_dx = 0.0F;
  for (int c = lane; c < args.width; c += kWarp) {
    const float d = to_float(dy[c]) * args.gain[c];
    sum_d += d;
    sum_dx += d * (to_float(x[c]) - mean) * rstd;
  }
  const float mean_d = warp_sum(sum_d) / static_cast<float>(args.width);
  const float mean_dx = warp_sum(sum_dx) / static_cast<float>(args.width);
  for (int c = lane; c < args.width; c += kWarp) {
    const float d = to_float(dy[c]) * args.gain[c];
    const float normed = (to_float(x[c]) - mean) * rstd;
    dx[c] = from_float<T>(to_float(dx[c]) + (d - mean_d - normed * mean_dx) * rstd);
  }
}

/// A thread has one column of the rows of one share.
template <class T>
__global__ void shares_plain(const Backward<T> args) {
  const int column = blockIdx.x * blockDim.x + threadIdx.x;
  if (column >= args.width) {
    return;
  }
  const std::int64_t end = args.rows * (blockIdx.y + 1) / gridDim.y;
  float dgain = 0.0F;
  float dbias = 0.0F;
  for (std::int64_t row = args.rows * blockIdx.y / gridDim.y; row < end; ++row) {
    const float slope = to_float(args.dy[row * args.width + column]);
    const float x = to_float(args.x[row * args.width + column]);
    dgain += slope * (x - args.mean[row]) * args.rstd[row];
    dbias += slope;
  }
  float* to = args.shares + std::int64_t{blockIdx.y} * 2 * args.width + column;
  to[0] = dgain;
  to[args.width] = dbias;
}

/// A warp's lanes have 32 columns, its block's warps every 32nd share of them.
__global__ void __launch_bounds__(kShareThreads)
    add_shares(const float* shares, int count, int width, float* dgain, float* dbias, Write write) {
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  const int column = blockIdx.x * kWarp + lane;
  double sum = 0.0;
  if (column < 2 * width) {
#pragma unroll 4
    for (int i = warp; i < count; i += kWarp) {
      sum += shares[std::int64_t{i} * 2 * width + column];
    }
  }
  __shared__ double sums[kWarp][kWarp];
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp == 0 && column < 2 * width) {
    float* to = column < width ? dgain + column : dbias + column - width;
    double total = write == Write::kAccumulate ? *to : 0.0;
    for (int i = 0; i < kWarp; ++i) {
      total += sums[i][lane];
    }
    *to = static_cast<float>(total);
  }
}

/// Adds to dx and leaves shares of dgain and dbias in scratch; returns how many.
template <class T>
int backward(Context& ctx, Backward<T>& args) {
  const auto make_shares = [&](std::int64_t count) {
    const Shape shape{count, 2, args.width};
    args.shares = ctx.scratch({shape}).f32();
    return static_cast<int>(count);
  };
  int shares = 0;
  const auto run = [&](auto vectors) {
    constexpr int kBlock = kBackwardThreads<T, vectors>;
    const auto blocks = ceil_div<std::int64_t>(args.rows, kBlock / kWarp);
    shares = make_shares(std::min<std::int64_t>(multiprocessors(ctx), blocks));
    backward_rows<T, vectors>
        <<<shares, kBlock, 2 * args.width * sizeof(float), stream_of(ctx)>>>(args);
    CUDA_CHECK_LAUNCH();
  };
  if (aligned16(args.dy, args.x, args.gain, args.dx) && with_vectors<T>(args.width, run)) {
    return shares;
  }
  constexpr std::int64_t kPlainShares = 64;
  shares = make_shares(std::min(kPlainShares, args.rows));
  dx_rows_plain<<<ceil_div<std::int64_t>(args.rows, kRows), kThreads, 0, stream_of(ctx)>>>(args);
  CUDA_CHECK_LAUNCH();
  const dim3 blocks(ceil_div(args.width, kThreads), shares);
  shares_plain<<<blocks, kThreads, 0, stream_of(ctx)>>>(args);
  CUDA_CHECK_LAUNCH();
  return shares;
}

}  // namespace

void layer_norm(Context& ctx, const Tensor& x, const NormWeights& weights, const Normed& out) {
  visit_float(x.dtype(), [&](auto type) {
    using T = decltype(type);
    forward<T, false>(ctx, forward_args<T>(x, weights, out));
  });
}

void add_norm(Context& ctx, const Tensor& x, const Tensor& branch, const NormWeights& weights,
              const Tensor& sum, const Normed& out) {
  visit_float(x.dtype(), [&](auto type) {
    using T = decltype(type);
    Forward<T> args = forward_args<T>(x, weights, out);
    args.branch = data_of<T>(branch);
    args.sum = data_of<T>(sum);
    forward<T, true>(ctx, args);
  });
}

void norm_backward(Context& ctx, const NormBackward& args) {
  visit_float(args.x.dtype(), [&](auto type) {
    using T = decltype(type);
    Backward<T> rows{.dy = data_of<T>(args.dy),
                     .x = data_of<T>(args.x),
                     .mean = args.normed.mean.f32(),
                     .rstd = args.normed.rstd.f32(),
                     .gain = args.gain.f32(),
                     .dx = data_of<T>(args.dx),
                     .shares = nullptr,
                     .rows = args.x.rows(),
                     .width = static_cast<int>(args.x.cols())};
    const int shares = backward(ctx, rows);
    add_shares<<<ceil_div<unsigned>(2 * rows.width, kWarp), kShareThreads, 0, stream_of(ctx)>>>(
        rows.shares, shares, rows.width, args.dweights.gain.f32(), args.dweights.bias.f32(),
        args.write);
    CUDA_CHECK_LAUNCH();
  });
}

}  // namespace carope::cuda
