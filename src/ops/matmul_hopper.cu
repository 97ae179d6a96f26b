#include "ops/matmul_hopper.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "ops/gelu.cuh"
#include "ops/shares_cuda.h"
#include "ops/tensor_copy.cuh"

// A block stays on its multiprocessor and takes tiles of 128 x 256 of the result, one after
// another. One thread brings the factors; each of two warpgroups multiplies half of a tile's rows,
// and does little else, so that the tensor cores have work queued all the time. When a tile's sums
// are complete, their warps round them and hand them, a piece of 16 x 64 at a time, to the warps of
// another group, which finish them: half of a tile at once, the rest, kept in few registers, while
// the next tile is computed.
namespace carope::cuda {
namespace {

constexpr int kRows = 128;
constexpr int kCols = 256;
constexpr int kDepth = 64;  // of the sum, at once
constexpr int kStages = 4;
constexpr int kGroups = 2;
constexpr int kConsumers = kGroups * kGroupThreads;
constexpr int kConsumerWarps = kConsumers / kWarp;

/// Who does what, for products of kWidth columns in one instruction. All 256 take so many registers
/// in one that there can be no fourth group of warps: one of the third's brings the factors.
template <int kWidth>
struct Roles {
  static constexpr bool kFourGroups = kWidth < kCols;
  static constexpr int kFinishers = kFourGroups ? 4 : 3;  // warps
  static constexpr int kThreads = kConsumers + (kFourGroups ? 2 : 1) * kGroupThreads;
  static constexpr int kConsumerRegisters = 192;
  static constexpr int kFinisherRegisters = kFourGroups ? 104 : 120;
  static constexpr int kProducerRegisters = 24;
  static constexpr int kProducer = kConsumers + (kFourGroups ? 4 : 3) * kWarp;  // thread
};

using Rows64 = SharedRows<64>;
constexpr int kPieceRows = 16;  // of a warp
constexpr int kPieceCols = 64;
constexpr int kPieceBytes = kPieceRows * Rows64::kRowBytes;
constexpr int kPieces = kCols / kPieceCols;  // of a warp's rows
constexpr int kDirect = 2;                   // of them are handed over at once
constexpr int kPieceWords = kPieceCols / 4;  // of a lane, each a pair of columns
constexpr int kLeftBytes = kRows * Rows64::kRowBytes;
constexpr int kRightBytes = kCols * Rows64::kRowBytes;

struct alignas(1024) SharedMemory {
  std::byte left[kStages][kLeftBytes];
  std::byte right[kStages][kRightBytes];
  std::byte pieces[kConsumerWarps][kDirect][kPieceBytes];
  std::uint64_t filled[kStages], free[kStages];
  std::uint64_t piece_filled[kConsumerWarps][kDirect], piece_free[kConsumerWarps][kDirect];
};

enum class Pass : std::uint8_t { kForward, kBackward };
/// Which factor two neighbouring blocks have in common: each brings half of it for both.
enum class Sharing : std::uint8_t { kNone, kLeft, kRight };

struct Product {
  CUtensorMap left;   // [M, K]
  CUtensorMap right;  // [N, K], in the backward pass [K, N]
  bf16* pre;          // [M, N]
  bf16* result;       // [M, N]
  const bf16* bias;   // [N] or null
  float* shares;      // of the sums of the result's columns, or null
  int width;          // N
  int steps;          // K / kDepth
  int columns;        // of tiles of a cluster
  int tiles;          // of a cluster
  int period;         // a cluster's every period-th tile is in the same column
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

/// Hands a consumer warp's 16 rows of finished sums over, piece by piece.
template <Pass kPass>
class HandOver {
 public:
  __device__ HandOver(const Product& p, SharedMemory& shared)
      : p_(p),
        lane_(threadIdx.x % kWarp),
        target_(
            Rows64{shared_address(shared.pieces[threadIdx.x / kWarp])}.at(lane_ % 16, lane_ / 16)),
        filled_(shared_address(shared.piece_filled[threadIdx.x / kWarp])),
        free_(shared_address(shared.piece_free[threadIdx.x / kWarp])) {}

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

  /// Rounds a tile's sums; hands over the first pieces and puts the others aside.
  template <int kSets, int kEach>
  __device__ __forceinline__ void take(const float (&sums)[kSets][kEach],
                                       const std::uint32_t (&bias)[kCols / 8]) {
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      std::uint32_t words[kPieceWords];
#pragma unroll
      for (int i = 0; i < kPieceWords; ++i) {
        const int pair = piece * kPieceWords + i;
        const float* from = &sums[2 * pair / kEach][2 * pair % kEach];
        float2 sum{from[0], from[1]};
        if constexpr (kPass == Pass::kForward) {
          const float2 added = unpack_bf16(bias[pair / 2]);
          sum.x += added.x;
          sum.y += added.y;
        }
        words[i] = pack_bf16(sum.x, sum.y);
      }
      if (piece < kDirect) {
        pass(piece, words);
      } else {
#pragma unroll
        for (int i = 0; i < kPieceWords; ++i) {
          kept_[piece - kDirect][i] = words[i];
        }
      }
    }
  }

  /// Hands over a piece that was put aside.
  __device__ void pass_kept(int piece) { pass(piece, kept_[piece - kDirect]); }

 private:
  __device__ __forceinline__ void pass(int piece, const std::uint32_t (&words)[kPieceWords]) {
    const int slot = piece % kDirect;
    const int offset = slot * static_cast<int>(sizeof(std::uint64_t));
    SharedBarrier{free_ + offset}.wait(times_ - 1);
#pragma unroll
    for (int i = 0; i < kPieceCols / 16; ++i) {
      // The permutation of pieces of 16 bytes is an exclusive or.
      store_fragment((target_ + slot * kPieceBytes) ^ (i * 32),
                     {{words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]}});
    }
    __syncwarp();
    if (lane_ == 0) {
      SharedBarrier{filled_ + offset}.arrive();
    }
    times_ += slot == kDirect - 1 ? 1 : 0;
  }

  const Product& p_;
  int lane_;
  std::uint32_t target_;  // of this lane in the first slot
  std::uint32_t filled_;
  std::uint32_t free_;
  std::uint32_t kept_[kPieces - kDirect][kPieceWords];  // in the order of the sums
  int times_ = 0;                                       // that each slot has been used
};

/// A warpgroup's part: half of the rows of each tile.
template <Pass kPass, Sharing kSharing, int kWidth>
__device__ void consume(const Product& p, SharedMemory& shared, int group) {
  const int lane = threadIdx.x % kWarp;
  int n = 0;  // steps so far
  float sums[kCols / kWidth][kWidth / 2];
  const auto start_step = [&](bool add) {
    const int stage = n % kStages;
    const auto left = SharedFactor::along_result(shared_address(shared.left[stage]) +
                                                 group * kLeftBytes / kGroups);
    const auto right = [&](int part) {
      const std::uint32_t address =
          shared_address(shared.right[stage]) + part * kRightBytes / (kCols / kWidth);
      return kPass == Pass::kForward ? SharedFactor::along_result(address)
                                     : SharedFactor::along_sum(address, kDepth * Rows64::kRowBytes);
    };
    barrier_at(shared.filled[stage]).wait(n / kStages);
    begin_products();
#pragma unroll
    for (int part = 0; part < kCols / kWidth; ++part) {
      start_product<false, kPass == Pass::kBackward>(sums[part], left, right(part), add);
    }
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
    } else {
      if (lane < Cluster<kSharing>::kBlocks) {
        arrive_at(free, lane);
      }
      __syncwarp();
    }
  };
  const auto finish_step_before = [&] {
    wait_for_products<1>();
    free_stage(n - 2);
  };

  HandOver<kPass> hand_over(p, shared);
  bool any = false;
  for (Walk<kSharing> walk(p); walk.more(); walk.advance()) {
    int step = 0;
#pragma unroll
    for (int piece = kDirect - 1; piece < kPieces; ++piece) {
      start_step(step > 0);
      if (piece >= kDirect && any) {
        hand_over.pass_kept(piece);
      }
      if (step > 0) {
        finish_step_before();
      }
      // The finishing warps have had the time for what they were handed before.
      const int end = piece == kPieces - 1 ? p.steps : p.steps * (piece + 2 - kDirect) / kPieces;
      for (++step; step < end; ++step) {
        start_step(true);
        finish_step_before();
      }
    }
    std::uint32_t bias[kCols / 8];
    hand_over.load_bias(walk.place(), bias);
    wait_for_products<0>();
#pragma unroll
    for (auto& part : sums) {
      settle(part);
    }
    free_stage(n - 1);
    hand_over.take(sums, bias);
    any = true;
  }
  if (any) {
#pragma unroll
    for (int piece = kDirect; piece < kPieces; ++piece) {
      hand_over.pass_kept(piece);
    }
  }
}

/// Sums over the four lanes that have the same lane % 8. Lane l gets the sums of
/// values[l / 16 * 4 + l / 8 % 2 * 2] and of the one after it.
__device__ float2 spread_sums(float (&values)[8]) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int half = 4; half > 1; half /= 2) {
    const bool upper = (lane & (4 * half)) != 0;
#pragma unroll
    for (int i = 0; i < half; ++i) {
      const float sent = upper ? values[i] : values[i + half];
      const float kept = upper ? values[i + half] : values[i];
      values[i] = kept + __shfl_xor_sync(kAllLanes, sent, 4 * half);
    }
  }
  return {values[0], values[1]};
}

__device__ inline void prefetch(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

/// Finishes what every kFinishers-th consumer warp hands over: always the same ones, because a
/// barrier tells one use of a slot only from the one before. A lane has 16 bytes of every fourth
/// row.
template <Pass kPass, int kFinishers>
class Finish {
 public:
  __device__ Finish(const Product& p, SharedMemory& shared)
      : p_(p),
        shared_(shared),
        warp_((threadIdx.x - kConsumers) / kWarp),
        lane_(threadIdx.x % kWarp) {}

  /// The tile at `at`. `next`: the one after it.
  __device__ void tile(const Place& at, const Place& next) {
    for (int piece = 0; piece < kPieces; ++piece) {
      float sums[8] = {};
#pragma unroll 1
      for (int giver = warp_; giver < kConsumerWarps; giver += kFinishers) {
        prefetch_pre(next, giver, piece);
        const bool last = giver + kFinishers >= kConsumerWarps;
        const int piece_after = last ? (piece + 1) % kPieces : piece;
        const int giver_after = last ? warp_ : giver + kFinishers;
        finish_piece(piece, giver, index(at, giver, piece), sums,
                     index(last && piece_after == 0 ? next : at, giver_after, piece_after));
      }
      if constexpr (kPass == Pass::kBackward) {
        const float2 column = spread_sums(sums);
        // The sums of this piece's columns come first; after all pieces they do again.
        const float2 total{column_sums_[0].x + column.x, column_sums_[0].y + column.y};
#pragma unroll
        for (int i = 0; i + 1 < kPieces; ++i) {
          column_sums_[i] = column_sums_[i + 1];
        }
        column_sums_[kPieces - 1] = total;
      }
    }
    times_ += kPieces / kDirect;
    if (kPass == Pass::kBackward && at.ends_column) {
      store_shares(at);
    }
  }

  /// Before the first tile.
  __device__ void begin(const Place& at) {
    for (int piece = 0; piece < kPieces; ++piece) {
      for (int giver = warp_; giver < kConsumerWarps; giver += kFinishers) {
        prefetch_pre(at, giver, piece);
      }
    }
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      load_pre(index(at, warp_, 0), i);
    }
  }

 private:
  static constexpr int kTurns = kPieceRows / 4;

  /// Of the first element of a giver's piece.
  __device__ std::int64_t start(const Place& at, int giver, int piece) const {
    return std::int64_t{at.row + giver * kPieceRows} * p_.width + at.column + piece * kPieceCols;
  }
  /// Of this lane's first element of it.
  __device__ std::int64_t index(const Place& at, int giver, int piece) const {
    return start(at, giver, piece) + lane_ / 8 * p_.width + lane_ % 8 * 8;
  }

  /// A tile ahead, so that what is loaded comes from the cache.
  __device__ void prefetch_pre(const Place& at, int giver, int piece) const {
    if (kPass == Pass::kBackward && lane_ < kPieceRows) {
      prefetch(p_.pre + start(at, giver, piece) + lane_ * p_.width);
    }
  }
  __device__ void load_pre(std::int64_t from, int turn) {
    if constexpr (kPass == Pass::kBackward) {
      pre_[turn] = __ldcs(reinterpret_cast<const uint4*>(p_.pre + from + turn * 4 * p_.width));
    }
  }

  /// `to`: index of this lane's first element, `after`: that in the next piece.
  __device__ __forceinline__ void finish_piece(int piece, int giver, std::int64_t to,
                                               float (&sums)[8], std::int64_t after) {
    const int slot = piece % kDirect;
    const std::byte* from = shared_.pieces[giver][slot];
    barrier_at(shared_.piece_filled[giver][slot]).wait(times_ + piece / kDirect);
    uint4 given[kTurns];
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      given[i] = *reinterpret_cast<const uint4*>(from + Rows64{0}.at(lane_ / 8 + 4 * i, lane_ % 8));
    }
    __syncwarp();
    if (lane_ == 0) {
      barrier_at(shared_.piece_free[giver][slot]).arrive();
    }
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      if constexpr (kPass == Pass::kForward) {
        __stcs(reinterpret_cast<uint4*>(p_.pre + to), given[i]);
        activate(given[i]);
      } else {
        differentiate(given[i], pre_[i], sums);
        load_pre(after, i);
      }
      __stcs(reinterpret_cast<uint4*>(p_.result + to), given[i]);
      to += 4 * p_.width;
    }
  }

  static __device__ void activate(uint4& values) {
    for (std::uint32_t* pair : {&values.x, &values.y, &values.z, &values.w}) {
      const float2 x = unpack_bf16(*pair);
      *pair = pack_bf16(fast_gelu_of(x.x), fast_gelu_of(x.y));
    }
  }

  static __device__ void differentiate(uint4& values, const uint4& pre, float (&sums)[8]) {
    std::uint32_t* const pairs[4] = {&values.x, &values.y, &values.z, &values.w};
    const std::uint32_t inputs[4] = {pre.x, pre.y, pre.z, pre.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float2 value = unpack_bf16(*pairs[i]);
      const float2 x = unpack_bf16(inputs[i]);
      value.x *= fast_gelu_derivative(x.x);
      value.y *= fast_gelu_derivative(x.y);
      sums[2 * i] += value.x;
      sums[2 * i + 1] += value.y;
      *pairs[i] = pack_bf16(value.x, value.y);
    }
  }

  __device__ void store_shares(const Place& at) {
    float* to = p_.shares + (std::int64_t{at.share} * kFinishers + warp_) * p_.width + at.column +
                lane_ % 8 * 8 + lane_ / 16 * 4 + lane_ / 8 % 2 * 2;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      if (p_.shares != nullptr) {
        *reinterpret_cast<float2*>(to + i * kPieceCols) = column_sums_[i];
      }
      column_sums_[i] = {};
    }
  }

  const Product& p_;
  const SharedMemory& shared_;
  int warp_;
  int lane_;
  uint4 pre_[kTurns];                 // of the piece to come
  float2 column_sums_[kPieces] = {};  // of two columns in each piece
  int times_ = 0;                     // that each slot has been used
};

template <Pass kPass, Sharing kSharing, int kFinishers>
__device__ void finish_tiles(const Product& p, SharedMemory& shared) {
  Finish<kPass, kFinishers> finish(p, shared);
  Walk<kSharing> walk(p);
  if (walk.more()) {
    finish.begin(walk.place());
  }
  while (walk.more()) {
    const Place at = walk.place();
    walk.advance();
    finish.tile(at, walk.more() ? walk.place() : at);
  }
}

template <Sharing kSharing>
__device__ void init_barriers(SharedMemory& shared) {
  for (int i = 0; i < kStages; ++i) {
    barrier_at(shared.filled[i]).init(1);
    barrier_at(shared.free[i]).init(kConsumerWarps * Cluster<kSharing>::kBlocks);
  }
  for (int warp = 0; warp < kConsumerWarps; ++warp) {
    for (int slot = 0; slot < kDirect; ++slot) {
      barrier_at(shared.piece_filled[warp][slot]).init(1);
      barrier_at(shared.piece_free[warp][slot]).init(1);
    }
  }
  publish_barriers();
}

/// Elsewhere than on Hopper an empty kernel, which does not take blocks of this size.
template <Pass kPass, Sharing kSharing, int kWidth>
__global__ void __launch_bounds__(kHopper ? Roles<kWidth>::kThreads : kWarp, 1)
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
    using R = Roles<kWidth>;
    const auto bring = [&] {
      if (threadIdx.x == R::kProducer) {
        produce<kPass, kSharing>(p, shared);
      }
      __syncwarp();
    };
    // The same in all lanes, which the compiler must know.
    const int warp = __shfl_sync(kAllLanes, threadIdx.x / kWarp, 0);
    if (warp < kConsumerWarps) {
      take_registers<R::kConsumerRegisters>();
      consume<kPass, kSharing, kWidth>(p, shared, warp / 4);
    } else if (warp < kConsumerWarps + 4) {
      leave_registers<R::kFinisherRegisters>();
      if (warp < kConsumerWarps + R::kFinishers) {
        finish_tiles<kPass, kSharing, R::kFinishers>(p, shared);
      } else {
        bring();
      }
    } else {
      leave_registers<R::kProducerRegisters>();
      bring();
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
  constexpr std::int64_t kMost = 1 << 26;
  return f.left.rows() > 0 && f.left.rows() % (kRows * C::kTall) == 0 &&
         f.result.cols() % (kCols * C::kWide) == 0 && f.left.cols() % kDepth == 0 &&
         f.left.cols() >= kPieces * kDepth && f.left.rows() < kMost && f.result.cols() < kMost;
}

/// Makes the product, and the sums of the result's columns in `shares` unless `sums` is empty.
/// Returns false if it cannot.
template <Pass kPass, Sharing kSharing, int kWidth>
bool run(Context& ctx, const Factors& f, const Tensor& bias, const Tensor& sums, Write write) {
  using C = Cluster<kSharing>;
  using R = Roles<kWidth>;
  constexpr auto kernel = multiply<kPass, kSharing, kWidth>;
  cudaFuncAttributes compiled{};
  CUDA_CHECK(cudaFuncGetAttributes(&compiled, kernel));
  if (compiled.maxThreadsPerBlock < R::kThreads || !is_served<kSharing>(f)) {
    return false;
  }
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(sizeof(SharedMemory))));
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {C::kBlocks, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(C::kBlocks);
  config.blockDim = dim3(R::kThreads);
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
      sums ? ctx.scratch({{std::int64_t{turns} * C::kTall * R::kFinishers, width}}) : Tensor{};
  if (sums && turns * columns > tiles) {
    clear(ctx, shares);  // some have no tile
  }
  const Product product{.left = tiles_of(f.left, kSharing == Sharing::kLeft ? kRows / 2 : kRows),
                        .right = tiles_of(f.right, kPass == Pass::kBackward      ? kDepth
                                                   : kSharing == Sharing::kRight ? kCols / 2
                                                                                 : kCols),
                        .pre = data_of<bf16>(f.pre),
                        .result = data_of<bf16>(f.result),
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
      return run<kPass, Sharing::kNone, 256>(ctx, f, bias, sums, write);
    case 1:
      return run<kPass, Sharing::kRight, 256>(ctx, f, bias, sums, write);
    case 2:
      return run<kPass, Sharing::kNone, 128>(ctx, f, bias, sums, write);
    default:
      return run<kPass, Sharing::kRight, 128>(ctx, f, bias, sums, write);
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
