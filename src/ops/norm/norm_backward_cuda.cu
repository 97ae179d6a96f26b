#include <algorithm>
#include <array>
#include <type_traits>

#include "ops/cuda/shares_cuda.h"
#include "ops/linear.h"
#include "ops/norm.h"
#include "ops/norm/norm_gate.cuh"

// A team of one or more warps has a row, in registers where the width is a common one. Its lanes
// keep their columns of dgain, dbias and dbias_before in registers too, from row to row: each byte
// of the rows is read once, and memory is busy with the next row while this one is computed.
namespace carope::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarp;

template <class T>
constexpr bool kHasGate = sizeof(T) == 2;

template <class T>
struct Backward {
  const T* dy;
  const T* x;
  const float* mean;
  const float* rstd;
  const float* gain;
  T* dx;
  float* shares;  // [shares, 3, width] parts of dgain, dbias and dbias_before
  std::int64_t rows;
  int width;
  GateGradient gate;  // or nothing
};

/// The columns of a lane: kVectors times 16 bytes.
template <class T, int kVectors, int kTeam>
struct Columns {
  int part = threadIdx.x / kWarp % kTeam;  // the warp in its team
  int lane = threadIdx.x % kWarp;

  __device__ int of(int vector) const {
    return ((vector * kTeam + part) * static_cast<int>(kWarp) + lane) * kLanesOf<T>;
  }
};

/// What a lane has of a row. Zeros where the row or its columns end: they add nothing.
template <class T, int kVectors>
struct Row {
  using Part = RawRow<T, kLanesOf<T>>;

  Part dy[kVectors], x[kVectors], dx[kVectors];
  float mean, rstd;

  template <class LaneColumns>
  __device__ static Row load(const Backward<T>& args, std::int64_t row,
                             const LaneColumns& columns) {
    const auto part = [&](const T* from, int column) {
      return row < args.rows && column < args.width ? Part::load(from + row * args.width + column)
                                                    : Part{};
    };
    Row loaded;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      loaded.dy[i] = part(args.dy, columns.of(i));
      loaded.x[i] = part(args.x, columns.of(i));
      loaded.dx[i] = part(args.dx, columns.of(i));
    }
    loaded.mean = row < args.rows ? args.mean[row] : 0.0F;
    loaded.rstd = row < args.rows ? args.rstd[row] : 0.0F;
    return loaded;
  }
};

/// Two sums over a team's lanes. Every thread of the block calls it, in turn with either `buffer`.
template <int kTeam>
__device__ float2 team_sums(float a, float b, int buffer) {
  a = warp_sum(a);
  b = warp_sum(b);
  if constexpr (kTeam > 1) {
    __shared__ float2 sums[2][kWarps];
    const int warp = threadIdx.x / kWarp;
    if (threadIdx.x % kWarp == 0) {
      sums[buffer][warp] = make_float2(a, b);
    }
    __syncthreads();
    a = 0.0F;
    b = 0.0F;
    for (int i = 0; i < kTeam; ++i) {
      const float2 part = sums[buffer][warp / kTeam * kTeam + i];
      a += part.x;
      b += part.y;
    }
  }
  return make_float2(a, b);
}

/// One block a multiprocessor. What is summed of dx is what is stored, rounded to T.
template <class T, int kVectors, int kTeam, class Gate>
__global__ void __launch_bounds__(kThreads, 1) backward_rows(const Backward<T> args) {
  extern __shared__ __align__(16) std::byte shared[];
  static_assert(kWarps % kTeam == 0);
  constexpr int kWidth = kLanesOf<T>;
  constexpr int kTeams = kWarps / kTeam;
  const Columns<T, kVectors, kTeam> columns;
  const int team = threadIdx.x / (kTeam * kWarp);
  const float per_column = 1.0F / static_cast<float>(args.width);
  float gain[kVectors][kWidth] = {};
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (columns.of(i) < args.width) {
      load_floats(args.gain + columns.of(i), gain[i]);
    }
  }

  float sums[3][kVectors][kWidth] = {};  // dgain, dbias, dbias_before
  const std::int64_t step = std::int64_t{gridDim.x} * kTeams;
  int buffer = 0;
  std::int64_t row = std::int64_t{blockIdx.x} * kTeams + team;
  auto next = Row<T, kVectors>::load(args, row, columns);
  Gate gate(shared, args.gate, row, step, args.rows, args.width);
  for (; row - team < args.rows; row += step) {
    const auto now = next;
    next = Row<T, kVectors>::load(args, row + step, columns);
    gate.begin(row);
    float sum_d = 0.0F;
    float sum_dx = 0.0F;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      float slope[kWidth], normed[kWidth];
      unpack(now.dy[i], slope);
      gate.add_to(slope, i);
      unpack(now.x[i], normed);
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
        normed[k] = (normed[k] - now.mean) * now.rstd;
        sums[0][i][k] += slope[k] * normed[k];
        sums[1][i][k] += slope[k];
        const float d = slope[k] * gain[i][k];
        sum_d += d;
        sum_dx += d * normed[k];
      }
    }
    const float2 total = team_sums<kTeam>(sum_d, sum_dx, buffer);
    buffer ^= 1;
    const float mean_d = total.x * per_column;
    const float mean_dx = total.y * per_column;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      float slope[kWidth], normed[kWidth], dx[kWidth];
      unpack(now.dy[i], slope);
      gate.add_to(slope, i);
      unpack(now.x[i], normed);
      unpack(now.dx[i], dx);
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
        normed[k] = (normed[k] - now.mean) * now.rstd;
        dx[k] += (slope[k] * gain[i][k] - mean_d - normed[k] * mean_dx) * now.rstd;
      }
      const Vec<T, kWidth> rounded = pack<T>(dx);
      if (row < args.rows && columns.of(i) < args.width) {
        rounded.store(args.dx + row * args.width + columns.of(i));
      }
      unpack(rounded, dx);
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
        sums[2][i][k] += dx[k];
      }
    }
  }

  // The teams add up their sums one after the other; the last one writes them.
  __shared__ float share[3][kVectors][kWidth][kTeam * kWarp];
  for (int turn = 0; turn < kTeams; ++turn) {
    if (team == turn) {
#pragma unroll
      for (int s = 0; s < 3; ++s) {
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
#pragma unroll
          for (int k = 0; k < kWidth; ++k) {
            float& shared = share[s][i][k][threadIdx.x % (kTeam * kWarp)];
            sums[s][i][k] += turn > 0 ? shared : 0.0F;
            shared = sums[s][i][k];
          }
          if (turn == kTeams - 1 && columns.of(i) < args.width) {
            store_floats(sums[s][i], args.shares + (std::int64_t{blockIdx.x} * 3 + s) * args.width +
                                         columns.of(i));
          }
        }
      }
    }
    __syncthreads();
  }
}

/// Calls launch(vectors, team), constants, if a row fits into a team's registers; otherwise returns
/// false.
template <class T, class Launch>
bool with_team(std::int64_t width, const Launch& launch) {
  const auto fits = [&](auto widest, auto vectors) {
    if (width <= widest) {
      launch(vectors, std::integral_constant<int, widest / (vectors * kWarp * kLanesOf<T>)>{});
      return true;
    }
    return false;
  };
  constexpr std::integral_constant<int, 2> kTwo;
  constexpr std::integral_constant<int, 3> kThree;
  return width % kLanesOf<T> == 0 && (fits(std::integral_constant<int, 512>{}, kTwo) ||
                                      fits(std::integral_constant<int, 768>{}, kThree) ||
                                      fits(std::integral_constant<int, 1024>{}, kTwo) ||
                                      fits(std::integral_constant<int, 1536>{}, kThree) ||
                                      fits(std::integral_constant<int, 2048>{}, kTwo));
}

template <class T>
__global__ void __launch_bounds__(kThreads) dx_rows_plain(const Backward<T> args) {
  const std::int64_t row = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
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
  float dbias_before = 0.0F;
  for (std::int64_t row = args.rows * blockIdx.y / gridDim.y; row < end; ++row) {
    const float slope = to_float(args.dy[row * args.width + column]);
    const float x = to_float(args.x[row * args.width + column]);
    dgain += slope * (x - args.mean[row]) * args.rstd[row];
    dbias += slope;
    dbias_before += to_float(args.dx[row * args.width + column]);
  }
  float* to = args.shares + std::int64_t{blockIdx.y} * 3 * args.width + column;
  to[0] = dgain;
  to[args.width] = dbias;
  to[2 * args.width] = dbias_before;
}

template <class T, int kVectors, int kTeam, class Gate>
void launch_rows(Context& ctx, const Backward<T>& args, unsigned blocks) {
  const auto kernel = backward_rows<T, kVectors, kTeam, Gate>;
  if (Gate::kBytes > 0) {
    CUDA_CHECK(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Gate::kBytes));
  }
  kernel<<<blocks, kThreads, Gate::kBytes, stream_of(ctx)>>>(args);
  CUDA_CHECK_LAUNCH();
}

/// Whether a block has room for a gate's part besides what it has without.
template <int kVectors, int kTeam>
bool gate_fits(const Context& ctx) {
  constexpr int kOthers = 3 * kVectors * 8 * kTeam * static_cast<int>(kWarp * sizeof(float)) + 1024;
  return kOthers + GateOnTheWay<kVectors, kTeam, kWarps>::kBytes <= shared_bytes(ctx);
}

/// Whether rows get the gate's part of their gradient on the way.
template <class T>
bool takes_gate(const Context& ctx, const Backward<T>& args) {
  bool fits = false;
  const auto look = [&](auto vectors, auto team) { fits = gate_fits<vectors, team>(ctx); };
  return kHasGate<T> && args.gate.outputs <= GateGradient::kMostOutputs &&
         aligned16(args.dy, args.x, args.gain, args.dx, args.gate.weight) &&
         with_team<T>(args.width, look) && fits;
}

/// Adds to dx and returns shares of dgain, dbias and dbias_before, in scratch.
template <class T>
Tensor backward(Context& ctx, Backward<T>& args) {
  Tensor shares;
  const auto make_shares = [&](std::int64_t count) {
    const Shape shape{count, 3, args.width};
    shares = ctx.scratch({shape});
    args.shares = shares.f32();
    return static_cast<unsigned>(count);
  };
  const auto run = [&](auto vectors, auto team) {
    const auto blocks = ceil_div<std::int64_t>(args.rows, kWarps / team);
    const unsigned count = make_shares(std::min<std::int64_t>(multiprocessors(ctx), blocks));
    if constexpr (kHasGate<T>) {
      if (args.gate.weight != nullptr) {
        launch_rows<T, vectors, team, GateOnTheWay<vectors, team, kWarps>>(ctx, args, count);
        return;
      }
    }
    launch_rows<T, vectors, team, NoGate>(ctx, args, count);
  };
  if (aligned16(args.dy, args.x, args.gain, args.dx) && with_team<T>(args.width, run)) {
    return shares;
  }
  constexpr std::int64_t kPlainShares = 64;
  const unsigned count = make_shares(std::min(kPlainShares, args.rows));
  dx_rows_plain<<<ceil_div<std::int64_t>(args.rows, kWarps), kThreads, 0, stream_of(ctx)>>>(args);
  CUDA_CHECK_LAUNCH();
  const dim3 blocks(ceil_div(args.width, kThreads), count);
  shares_plain<<<blocks, kThreads, 0, stream_of(ctx)>>>(args);
  CUDA_CHECK_LAUNCH();
  return shares;
}

}  // namespace

void norm_backward(Context& ctx, const NormBackward& args, Tensor& dy) {
  visit_float(args.x.dtype(), [&](auto type) {
    using T = decltype(type);
    Backward<T> rows{.dy = data_of<T>(dy),
                     .x = data_of<T>(args.x),
                     .mean = args.normed.mean.f32(),
                     .rstd = args.normed.rstd.f32(),
                     .gain = args.gain.f32(),
                     .dx = data_of<T>(args.dx),
                     .shares = nullptr,
                     .rows = args.x.rows(),
                     .width = static_cast<int>(args.x.cols()),
                     .gate = {}};
    if (args.gate_weight) {
      rows.gate = {.weight = args.gate_weight.f32(),
                   .dlogits = args.dlogits.f32(),
                   .outputs = static_cast<int>(args.dlogits.cols())};
      if (!takes_gate(ctx, rows)) {
        rows.gate = {};
        carope::linear_backward_input(ctx, args.dlogits, args.gate_weight, dy, Write::kAccumulate);
      }
    }
    const Tensor shares = backward(ctx, rows);
    add_shares(ctx, shares, std::array{args.dweights.gain, args.dweights.bias, args.dbias_before},
               args.write);
  });
}

}  // namespace carope::cuda
