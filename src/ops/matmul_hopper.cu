#include "ops/matmul_hopper.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "ops/gelu.cuh"
#include "ops/shares_cuda.h"
#include "ops/tensor_copy.cuh"

// A block stays on its multiprocessor and takes tiles of 128 x 256 of the result, one after
// another. One thread brings the factors; each of two warpgroups multiplies half of a tile's rows.
// When a tile's sums are complete they are rounded and put aside, in half as many registers, and
// while the tensor cores compute the next tile, the same warps finish this one in eight parts: they
// are never idle for it. What is stored, and what the backward pass reads besides the factors,
// passes through shared memory of each warp's own.
namespace carope::cuda {
namespace {

constexpr int kRows = 128;
constexpr int kCols = 256;
constexpr int kDepth = 64;  // of the sum, at once
constexpr int kStages = 4;
constexpr int kGroups = 2;
constexpr int kConsumers = kGroups * kGroupThreads;
constexpr int kConsumerWarps = kConsumers / kWarp;
constexpr int kThreads = kConsumers + kGroupThreads;
constexpr int kConsumerRegisters = 240;
constexpr int kProducerRegisters = 24;

using Rows64 = SharedRows<64>;
constexpr int kPieceRows = 16;  // of a warp
constexpr int kPieceCols = 64;
constexpr int kPieceBytes = kPieceRows * Rows64::kRowBytes;
constexpr int kParts = 8;  // of a tile, 32 columns each: two make a piece
constexpr int kPartCols = kCols / kParts;
constexpr int kLeftBytes = kRows * Rows64::kRowBytes;
constexpr int kRightBytes = kCols * Rows64::kRowBytes;

struct alignas(1024) SharedMemory {
  std::byte left[kStages][kLeftBytes];
  std::byte right[kStages][kRightBytes];
  std::byte pieces[kConsumerWarps][2][kPieceBytes];
  std::uint64_t filled[kStages], free[kStages], piece_filled[kConsumerWarps][2];
};

enum class Pass : std::uint8_t { kForward, kBackward };
/// Which factor two neighbouring blocks have in common: each brings half of it for both.
enum class Sharing : std::uint8_t { kNone, kLeft, kRight };

struct Product {
  CUtensorMap left;    // [M, K]
  CUtensorMap right;   // [N, K], in the backward pass [K, N]
  CUtensorMap pre;     // [M, N]
  CUtensorMap result;  // [M, N]
  const bf16* bias;    // [N] or null
  float* shares;       // of the sums of the result's columns, or null
  int width;           // N
  int steps;           // K / kDepth
  int columns;         // of tiles of a cluster
  int tiles;           // of a cluster
  int period;          // a cluster's every period-th tile is in the same column
};

constexpr int kBoth = 0b11;  // blocks of a cluster

template <Sharing kSharing>
struct Cluster {
  static constexpr int kBlocks = kSharing == Sharing::kNone ? 1 : 2;
  static constexpr int kTall = kSharing == Sharing::kRight ? 2 : 1;
  static constexpr int kWide = kSharing == Sharing::kLeft ? 2 : 1;

  static __device__ int rank() { return kBlocks == 1 ? 0 : cluster_rank(); }
};

/// A block's tile.
struct Place {
  int row, column;
  int share;         // which share of its columns' sums it adds to
  bool ends_column;  // and is the last to
};

/// The tiles of a cluster: clusters take them in turns, row by row, so that those under way have
/// few rows. Of those a cluster will take, the ones in the same column come first.
template <Sharing kSharing>
class Walk {
 public:
  explicit __device__ Walk(const Product& p)
      : p_(p), clusters_(gridDim.x / kBlocks), first_(blockIdx.x / kBlocks), tile_(first_) {}

  __device__ bool more() const { return tile_ < p_.tiles; }
  __device__ bool ends_column() const { return tile_ + clusters_ * p_.period >= p_.tiles; }
  __device__ void advance() {
    if (!ends_column()) {
      tile_ += clusters_ * p_.period;
    } else {
      first_ += clusters_;
      tile_ = first_ < clusters_ * p_.period ? first_ : p_.tiles;
    }
  }

  __device__ Place place() const {
    using C = Cluster<kSharing>;
    const int down = C::kTall == 1 ? 0 : C::rank();
    const int across = C::kWide == 1 ? 0 : C::rank();
    return {(tile_ / p_.columns * C::kTall + down) * kRows,
            (tile_ % p_.columns * C::kWide + across) * kCols, first_ / p_.columns * C::kTall + down,
            ends_column()};
  }

 private:
  static constexpr int kBlocks = Cluster<kSharing>::kBlocks;

  const Product& p_;
  int clusters_;
  int first_;  // of this column
  int tile_;
};

__device__ SharedBarrier barrier_at(const std::uint64_t& barrier) {
  return {shared_address(&barrier)};
}

/// Brings the factors. One thread does.
template <Pass kPass, Sharing kSharing>
__device__ void produce(const Product& p, SharedMemory& shared) {
  using C = Cluster<kSharing>;
  const int rank = C::rank();
  int n = 0;
  for (Walk<kSharing> walk(p); walk.more(); walk.advance()) {
    const Place at = walk.place();
    for (int step = 0; step < p.steps; ++step, ++n) {
      const int stage = n % kStages;
      const std::uint32_t left = shared_address(shared.left[stage]);
      const std::uint32_t right = shared_address(shared.right[stage]);
      const SharedBarrier filled = barrier_at(shared.filled[stage]);
      barrier_at(shared.free[stage]).wait(n / kStages - 1);
      arrive_expecting(filled, kLeftBytes + kRightBytes);
      const int k = step * kDepth;
      if constexpr (kSharing == Sharing::kLeft) {
        load_tile_for(kBoth, left + rank * kLeftBytes / 2, p.left, at.row + rank * kRows / 2, k,
                      filled);
      } else {
        load_tile(left, p.left, at.row, k, filled);
      }
      if constexpr (kPass == Pass::kForward) {
        if constexpr (kSharing == Sharing::kRight) {
          load_tile_for(kBoth, right + rank * kRightBytes / 2, p.right,
                        at.column + rank * kCols / 2, k, filled);
        } else {
          load_tile(right, p.right, at.column, k, filled);
        }
      } else {
        constexpr int kSlabs = kCols / 64;
        constexpr int kOwn = kSharing == Sharing::kRight ? kSlabs / 2 : kSlabs;
#pragma unroll
        for (int i = 0; i < kOwn; ++i) {
          if constexpr (kSharing == Sharing::kRight) {
            const int slab = rank * kOwn + i;
            load_tile_for(kBoth, right + slab * kRightBytes / kSlabs, p.right, k,
                          at.column + slab * 64, filled);
          } else {
            load_tile(right + i * kRightBytes / kSlabs, p.right, k, at.column + i * 64, filled);
          }
        }
      }
    }
  }
}

/// Sums over the eight lanes that have the same lane % 4. Lane l gets the sum of
/// values[l / 16 * 4 + l / 8 % 2 * 2 + l / 4 % 2].
__device__ float spread_sums(float (&values)[8]) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int half = 4; half > 0; half /= 2) {
    const bool upper = (lane & (4 * half)) != 0;
#pragma unroll
    for (int i = 0; i < half; ++i) {
      const float sent = upper ? values[i] : values[i + half];
      const float kept = upper ? values[i + half] : values[i];
      values[i] = kept + __shfl_xor_sync(kAllLanes, sent, 4 * half);
    }
  }
  return values[0];
}

/// What a warp does to its 16 rows of a tile whose sums are complete.
template <Pass kPass>
class Finish {
 public:
  __device__ Finish(const Product& p, SharedMemory& shared)
      : p_(p),
        warp_(threadIdx.x / kWarp),
        lane_(threadIdx.x % kWarp),
        pieces_(shared_address(shared.pieces[warp_])),
        filled_(shared_address(shared.piece_filled[warp_])) {}

  /// Rounds the sums and puts them aside.
  __device__ void keep(const WideSums& sums, const std::uint32_t (&bias)[kCols / 8]) {
#pragma unroll
    for (int i = 0; i < kCols / 4; ++i) {
      float2 pair{sums[2 * i], sums[2 * i + 1]};
      if constexpr (kPass == Pass::kForward) {
        const float2 added = unpack_bf16(bias[i / 2]);
        pair.x += added.x;
        pair.y += added.y;
      }
      kept_[i] = pack_bf16(pair.x, pair.y);
    }
  }

  /// The bias of this lane's columns; zeros if there is none.
  __device__ void load_bias(const Place& at, std::uint32_t (&bias)[kCols / 8]) const {
    if constexpr (kPass == Pass::kForward) {
      const auto* from = reinterpret_cast<const std::uint32_t*>(p_.bias + at.column) + lane_ % 4;
#pragma unroll
      for (int i = 0; i < kCols / 8; ++i) {
        bias[i] = p_.bias != nullptr ? from[4 * i] : 0;
      }
    }
  }

  /// Begins the load of a tile's first piece of `pre`; those after it begin along the way.
  __device__ void begin(const Place& at) const {
    if (kPass == Pass::kBackward && lane_ == 0) {
      fetch(at, 0);
    }
  }

  /// Finishes one part of the tile at `at`. `next`: the tile after it, or null.
  __device__ __forceinline__ void part(int number, const Place& at, const Place* next) {
    const int piece_number = number / 2;
    if (number % 2 == 0) {
      begin_piece(piece_number, at, next);
    }
    float sums[8] = {};
#pragma unroll
    for (int f = 0; f < 2; ++f) {
      const int column = number % 2 * 2 + f;  // 16 of the piece
      Fragment kept;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        kept.part[i] = kept_[8 * number + 4 * f + i];
      }
      if constexpr (kPass == Pass::kForward) {
        store_fragment(lane_address(0, column), kept);
        Fragment activated;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 pair = unpack_bf16(kept.part[i]);
          activated.part[i] = pack_bf16(fast_gelu_of(pair.x), fast_gelu_of(pair.y));
        }
        store_fragment(lane_address(1, column), activated);
      } else {
        const Fragment pre = piece(piece_number % 2).load(0, column);
        Fragment gradient;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float2 pair = unpack_bf16(kept.part[i]);
          const float2 x = unpack_bf16(pre.part[i]);
          pair.x *= fast_gelu_derivative(x.x);
          pair.y *= fast_gelu_derivative(x.y);
          sums[4 * f + i / 2 * 2] += pair.x;
          sums[4 * f + i / 2 * 2 + 1] += pair.y;
          gradient.part[i] = pack_bf16(pair.x, pair.y);
        }
        store_fragment(lane_address(piece_number % 2, column), gradient);
      }
    }
    if constexpr (kPass == Pass::kBackward) {
      column_sums_[number] += spread_sums(sums);
    }
    if (number % 2 == 1) {
      end_piece(piece_number, at);
    }
    if (kPass == Pass::kBackward && number == kParts - 1) {
      ++tiles_;
      if (at.ends_column && p_.shares != nullptr) {
        store_shares(at);
      }
    }
  }

  /// Before the block ends.
  __device__ void end() const {
    if (lane_ == 0) {
      wait_for_store_reads();
    }
  }

 private:
  __device__ Rows64 piece(int i) const { return {pieces_ + i * kPieceBytes}; }
  __device__ std::uint32_t lane_address(int i, int column) const {
    return piece(i).at(lane_ % 16, 2 * column + lane_ / 16);
  }
  __device__ SharedBarrier filled(int i) const {
    return {filled_ + i * static_cast<int>(sizeof(std::uint64_t))};
  }

  __device__ void fetch(const Place& at, int piece_number) const {
    const SharedBarrier arrived = filled(piece_number % 2);
    arrive_expecting(arrived, kPieceBytes);
    load_tile(pieces_ + piece_number % 2 * kPieceBytes, p_.pre, at.row + warp_ * kPieceRows,
              at.column + piece_number * kPieceCols, arrived);
  }

  __device__ void begin_piece(int piece_number, const Place& at, const Place* next) const {
    if (lane_ == 0) {
      wait_for_store_reads();
      if constexpr (kPass == Pass::kBackward) {  // in place of the piece that was just stored
        if (piece_number + 1 < kCols / kPieceCols) {
          fetch(at, piece_number + 1);
        } else if (next != nullptr) {
          fetch(*next, 0);
        }
      }
    }
    __syncwarp();
    if constexpr (kPass == Pass::kBackward) {
      filled(piece_number % 2).wait(tiles_ * (kCols / kPieceCols / 2) + piece_number / 2);
    }
  }

  __device__ void end_piece(int piece_number, const Place& at) const {
    publish_to_products();
    __syncwarp();
    if (lane_ == 0) {
      const int row = at.row + warp_ * kPieceRows;
      const int column = at.column + piece_number * kPieceCols;
      if constexpr (kPass == Pass::kForward) {
        store_tile(p_.pre, row, column, pieces_);
        store_tile(p_.result, row, column, pieces_ + kPieceBytes);
      } else {
        store_tile(p_.result, row, column, pieces_ + piece_number % 2 * kPieceBytes);
      }
      close_stores();
    }
  }

  __device__ void store_shares(const Place& at) {
    float* to = p_.shares + (std::int64_t{at.share} * kConsumerWarps + warp_) * p_.width +
                at.column + lane_ / 8 * 8 + lane_ % 4 * 2 + lane_ / 4 % 2;
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      to[i * kPartCols] = column_sums_[i];
      column_sums_[i] = 0.0F;
    }
  }

  const Product& p_;
  int warp_;
  int lane_;
  std::uint32_t pieces_;
  std::uint32_t filled_;
  std::uint32_t kept_[kCols / 4];   // pairs of columns, in the order of WideSums
  float column_sums_[kParts] = {};  // of a column in each part
  int tiles_ = 0;
};

/// A warpgroup's part: half of the rows of each tile.
template <Pass kPass, Sharing kSharing>
__device__ void consume(const Product& p, SharedMemory& shared, int group) {
  const int lane = threadIdx.x % kWarp;
  int n = 0;  // steps so far
  WideSums sums;
  const auto start_step = [&](bool add) {
    const int stage = n % kStages;
    const std::uint32_t right = shared_address(shared.right[stage]);
    barrier_at(shared.filled[stage]).wait(n / kStages);
    begin_products();
    start_product<false, kPass == Pass::kBackward>(
        sums,
        SharedFactor::along_result(shared_address(shared.left[stage]) +
                                   group * kLeftBytes / kGroups),
        kPass == Pass::kForward ? SharedFactor::along_result(right)
                                : SharedFactor::along_sum(right, kDepth * Rows64::kRowBytes),
        add);
    close_products();
    ++n;
  };
  const auto free_stage = [&](int step) {
    __syncwarp();
    const SharedBarrier free = barrier_at(shared.free[step % kStages]);
    if constexpr (kSharing == Sharing::kNone) {
      if (lane == 0) {
        free.arrive();
      }
    } else if (lane < Cluster<kSharing>::kBlocks) {
      arrive_at(free, lane);
    }
  };
  const auto finish_step_before = [&] {
    wait_for_products<1>();
    free_stage(n - 2);
  };

  Finish<kPass> finish(p, shared);
  Place last{};
  bool any = false;
  for (Walk<kSharing> walk(p); walk.more(); walk.advance()) {
    const Place at = walk.place();
    if (!any) {
      finish.begin(at);
    }
    int step = 0;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      start_step(part > 0);
      if (any) {
        finish.part(part, last, &at);
      }
      if (part > 0) {
        finish_step_before();
      }
      for (++step; step < p.steps * (part + 1) / kParts; ++step) {
        start_step(true);
        finish_step_before();
      }
    }
    std::uint32_t bias[kCols / 8];
    finish.load_bias(at, bias);
    wait_for_products<0>();
    settle(sums);
    free_stage(n - 1);
    finish.keep(sums, bias);
    last = at;
    any = true;
  }
  if (any) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      finish.part(part, last, nullptr);
    }
  }
  finish.end();
}

template <Sharing kSharing>
__device__ void init_barriers(SharedMemory& shared) {
  for (int i = 0; i < kStages; ++i) {
    barrier_at(shared.filled[i]).init(1);
    barrier_at(shared.free[i]).init(kConsumerWarps * Cluster<kSharing>::kBlocks);
  }
  for (const auto& pair : shared.piece_filled) {
    barrier_at(pair[0]).init(1);
    barrier_at(pair[1]).init(1);
  }
  publish_barriers();
}

/// Elsewhere than on Hopper an empty kernel, which does not take blocks of this size.
template <Pass kPass, Sharing kSharing>
__global__ void __launch_bounds__(kHopper ? kThreads : kWarp, 1)
    multiply(const __grid_constant__ Product p) {
  if constexpr (kHopper) {
    extern __shared__ __align__(1024) std::byte memory[];
    SharedMemory& shared = *reinterpret_cast<SharedMemory*>(memory);
    if (threadIdx.x == 0) {
      init_barriers<kSharing>(shared);
    }
    const auto sync = [] {
      if constexpr (kSharing == Sharing::kNone) {
        __syncthreads();
      } else {
        sync_cluster();
      }
    };
    sync();
    // The same in all lanes, which the compiler must know.
    const int group = __shfl_sync(kAllLanes, threadIdx.x / kGroupThreads, 0);
    if (group < kGroups) {
      take_registers<kConsumerRegisters>();
      consume<kPass, kSharing>(p, shared, group);
    } else {
      leave_registers<kProducerRegisters>();
      if (threadIdx.x == kConsumers) {
        produce<kPass, kSharing>(p, shared);
      }
      __syncwarp();
    }
    if constexpr (kSharing != Sharing::kNone) {
      sync();  // until then the other block may write to this one's shared memory
    }
  }
}

struct Factors {
  const Tensor& left;
  const Tensor& right;
  const Tensor& pre;
  const Tensor& result;
};

/// Whether this kernel can make the product.
template <Sharing kSharing>
bool is_served(const Factors& f) {
  using C = Cluster<kSharing>;
  for (const Tensor* tensor : {&f.left, &f.right, &f.pre, &f.result}) {
    if (tensor->dtype() != DType::kBF16 || !aligned16(tensor->raw())) {
      return false;
    }
  }
  constexpr std::int64_t kMost = 1 << 30;
  return f.left.rows() > 0 && f.left.rows() % (kRows * C::kTall) == 0 &&
         f.result.cols() % (kCols * C::kWide) == 0 && f.left.cols() % kDepth == 0 &&
         f.left.cols() >= kParts * kDepth && f.left.rows() < kMost && f.result.cols() < kMost;
}

/// Makes the product, and the sums of the result's columns in `shares` unless `sums` is empty.
/// Returns false if it cannot.
template <Pass kPass, Sharing kSharing>
bool run(Context& ctx, const Factors& f, const Tensor& bias, const Tensor& sums, Write write) {
  using C = Cluster<kSharing>;
  constexpr auto kernel = multiply<kPass, kSharing>;
  cudaFuncAttributes compiled{};
  CUDA_CHECK(cudaFuncGetAttributes(&compiled, kernel));
  if (compiled.maxThreadsPerBlock < kThreads || !is_served<kSharing>(f)) {
    return false;
  }
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(sizeof(SharedMemory))));
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {C::kBlocks, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(C::kBlocks);
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = sizeof(SharedMemory);
  config.stream = stream_of(ctx);
  config.attrs = &cluster;
  config.numAttrs = 1;
  int clusters = 0;
  CUDA_CHECK(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config));

  const auto rows = static_cast<int>(f.left.rows());
  const auto width = static_cast<int>(f.result.cols());
  const int columns = width / (kCols * C::kWide);
  const int tiles = rows / (kRows * C::kTall) * columns;
  clusters = std::min(clusters, tiles);
  const int turns = clusters / std::gcd(clusters, columns);  // of clusters in a column
  const Tensor shares =
      sums ? ctx.scratch({{std::int64_t{turns} * C::kTall * kConsumerWarps, width}}) : Tensor{};
  if (sums && turns * columns > tiles) {
    clear(ctx, shares);  // some have no tile
  }
  const Product product{.left = tiles_of(f.left, kSharing == Sharing::kLeft ? kRows / 2 : kRows),
                        .right = tiles_of(f.right, kPass == Pass::kBackward      ? kDepth
                                                   : kSharing == Sharing::kRight ? kCols / 2
                                                                                 : kCols),
                        .pre = tiles_of(f.pre, kPieceRows),
                        .result = tiles_of(f.result, kPieceRows),
                        .bias = bias ? data_of<bf16>(bias) : nullptr,
                        .shares = sums ? shares.f32() : nullptr,
                        .width = width,
                        .steps = static_cast<int>(f.left.cols() / kDepth),
                        .columns = columns,
                        .tiles = tiles,
                        .period = turns * columns / clusters};
  config.gridDim = dim3(clusters * C::kBlocks);
  CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, product));
  if (sums) {
    add_shares(ctx, shares, std::array{sums}, write);
  }
  return true;
}

/// Calls one of the kernels.
template <Pass kPass>
bool run_variant(int variant, Context& ctx, const Factors& f, const Tensor& bias,
                 const Tensor& sums, Write write) {
  switch (variant) {
    case 0:
      return run<kPass, Sharing::kNone>(ctx, f, bias, sums, write);
    case 1:
      return run<kPass, Sharing::kLeft>(ctx, f, bias, sums, write);
    default:
      return run<kPass, Sharing::kRight>(ctx, f, bias, sums, write);
  }
}

constexpr int kVariant = 0;

}  // namespace

bool hopper_linear_gelu(Context& ctx, const Tensor& x, const Tensor& weight, const Tensor& bias,
                        const Tensor& pre, const Tensor& y) {
  return run_variant<Pass::kForward>(kVariant, ctx, {x, weight, pre, y}, bias, {},
                                     Write::kOverwrite);
}

bool hopper_backward_gelu(Context& ctx, const Tensor& dy, const Tensor& weight, const Tensor& pre,
                          const Tensor& dpre, const Tensor& dbias, Write write) {
  return run_variant<Pass::kBackward>(kVariant, ctx, {dy, weight, pre, dpre}, {}, dbias, write);
}

}  // namespace carope::cuda
