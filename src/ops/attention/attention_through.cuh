#pragma once

#include "ops/attention/attention_problem.cuh"
#include "ops/cuda/warpgroup.cuh"
#include "ops/rotation/rotate.cuh"

// What a backward pass of attention on Hopper does with a tile of 64 gradients of q, k or v before
// it leaves the registers: on through the rotation that q and k had, and into the sums for a bias.
namespace carope::cuda::tiled {

/// By what q and k were rotated.
enum class Turn : std::uint8_t { kNone, kIncrements, kPhases };

/// A backward pass that ends at attention's input, and one that goes on through what was before.
struct EndsHere {
  static constexpr bool kGoesOn = false;
  static constexpr Turn kTurn = Turn::kNone;
  static constexpr RotaryLayout kLayout = RotaryLayout::kHalf;
  static constexpr bool kGate = false;
};
template <Turn kBy, RotaryLayout kPairsAre>
struct GoesOn {
  static constexpr bool kGoesOn = true;
  static constexpr Turn kTurn = kBy;
  static constexpr RotaryLayout kLayout = kPairsAre;
  static constexpr bool kGate = kBy == Turn::kPhases;  // which the phases came from
};

/// What a backward pass that goes on writes besides dqkv.
struct RotationOutputs {
  float* dlogits = nullptr;      // [B, T, H]
  float* column_sums = nullptr;  // [B, groups, 3, C]: of dqkv, or null
};

inline constexpr int kPairs = 32;     // of a head
inline constexpr int kLanePairs = 8;  // that a lane has of each of its two rows

/// The thread's number in its group, read anew: what follows from it is computed where a tile ends,
/// instead of occupying registers all the time before.
__device__ inline int read_thread() {
  unsigned thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return static_cast<int>(thread % kGroupThreads);
}

/// The row of the tile whose elements a thread holds first; those of its other row are 8 below.
__device__ inline int row_of(int thread) { return thread / 32 * 16 + thread % 32 / 4; }

/// Where a head's row of a [B, T, H, P] tensor begins.
template <class T>
__device__ T* pairs_of(T* tensor, const Problem<bf16>& p, int head, int token) {
  const std::int64_t row = static_cast<std::int64_t>(head / p.heads) * p.queries + token;
  return tensor + (row * p.heads + head % p.heads) * kPairs;
}

/// A lane's pairs of a row: it has first() + offset(j) of the head's pairs, and of each both
/// elements, in either layout, as x() and y() of its GroupSums.
template <RotaryLayout kLayout>
struct LanePair {
  static constexpr bool kHalf = kLayout == RotaryLayout::kHalf;

  static __device__ int first(int thread) { return thread % 4 * (kHalf ? 2 : 1); }
  static __device__ constexpr int offset(int j) { return kHalf ? j / 2 * 8 + j % 2 : j * 4; }
  static __device__ constexpr int x(int half, int j) {
    return (kHalf ? j / 2 * 4 + j % 2 : j * 4) + 2 * half;
  }
  static __device__ constexpr int y(int half, int j) { return x(half, j) + (kHalf ? 16 : 1); }
};

/// Where a warp's finished rows pass through shared memory, 32 channels at a time, and its sums of
/// columns over a head's rows.
struct alignas(128) WarpStage {
  using Rows = SharedRows<32>;
  std::byte rows[16 * Rows::kRowBytes];
  float sums[3][2 * kPairs];  // of dq, dk and dv
};

/// The 16 bytes of a warp's rows in shared memory that a lane moves to or from global memory, of
/// the first or the second of its two rows.
__device__ inline uint4& piece_of(void* rows, int lane, int half) {
  const std::uint32_t offset = WarpStage::Rows{0}.at(8 * half + lane / 4, lane % 4);
  return *reinterpret_cast<uint4*>(static_cast<std::byte*>(rows) + offset);
}

/// 16 bits for each pair that a lane has of its two rows, two pairs a word. In global memory these
/// lie apart, so lanes load whole pieces of rows, and exchange them through `rows`, shared memory
/// of the warp.
template <RotaryLayout kLayout>
class LaneWords {
 public:
  std::uint32_t of[2][kLanePairs / 2];

  /// Loads pieces from a tensor [B, T, H, P]. The lane's own pairs are there after exchange().
  __device__ void load(const std::uint16_t* tensor, const Problem<bf16>& p, int head, int tile) {
    const int thread = read_thread();
    const std::uint16_t* const from =
        pairs_of(tensor, p, head, tile * 64 + row_of(thread)) + thread % 4 * 8;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const auto piece = *reinterpret_cast<const uint4*>(from + half * 8 * p.heads * kPairs);
      of[half][0] = piece.x;
      of[half][1] = piece.y;
      of[half][2] = piece.z;
      of[half][3] = piece.w;
    }
  }
  __device__ void exchange(void* rows) {
    const int lane = read_thread() % 32;
    __syncwarp();  // what was there before has been read
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      piece_of(rows, lane, half) = {of[half][0], of[half][1], of[half][2], of[half][3]};
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const Fragment f = WarpStage::Rows{shared_address(rows)}.load(0, i, lane);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        of[k % 2][2 * i + k / 2] = f.part[k];
      }
    }
    if constexpr (kLayout == RotaryLayout::kInterleaved) {
      regroup(lane);
    }
  }

 private:
  /// Of eight pairs the lane has 2 c and 2 c + 1, and wants c and c + 4: the lower halves of words
  /// of two of the four lanes that share a row, or their upper halves.
  __device__ void regroup(int lane) {
    const int first = lane % 4 / 2;
    const unsigned halves = lane % 2 != 0 ? 0x7632 : 0x5410;
#pragma unroll
    for (int i = 0; i < kLanePairs; ++i) {
      std::uint32_t& word = of[i / 4][i % 4];
      const std::uint32_t a = __shfl_sync(kAllLanes, word, first, 4);
      const std::uint32_t b = __shfl_sync(kAllLanes, word, first + 2, 4);
      word = __byte_perm(a, b, halves);
    }
  }
};

/// The angles by which a lane's pairs of a tile were rotated.
template <class Way>
class LaneTurns {
 public:
  __device__ void load(const RotationArgs& rotation, const Problem<bf16>& p, int head, int tile) {
    if constexpr (Way::kTurn == Turn::kIncrements) {
      const int thread = read_thread();
      steps_ = tile * 64 + row_of(thread) + 1;
#pragma unroll
      for (int j = 0; j < kLanePairs; ++j) {
        increments_[j] = rotation.increments[Pair::first(thread) + Pair::offset(j)];
      }
    } else if constexpr (Way::kTurn == Turn::kPhases) {
      phases_.load(rotation.phases, p, head, tile);
    }
  }

  /// Computes sines from what was loaded. `rows`: shared memory of the warp, to exchange phases
  /// through.
  __device__ void prepare([[maybe_unused]] void* rows) {
    if constexpr (Way::kTurn == Turn::kPhases) {
      phases_.exchange(rows);
    }
    if constexpr (Way::kTurn != Turn::kNone) {
      for_each_pair([&](int half, int j) {
        sincos_turns<bf16>(turns(half, j), sine_[half][j], cosine_[half][j]);
      });
    }
  }

  __device__ void undo(GroupSums& sums) const {
    if constexpr (Way::kTurn != Turn::kNone) {
      for_each_pair([&](int half, int j) {
        float& x = sums[Pair::x(half, j)];
        float& y = sums[Pair::y(half, j)];
        const float turned = x * cosine_[half][j] + y * sine_[half][j];
        y = y * cosine_[half][j] - x * sine_[half][j];
        x = turned;
      });
    }
  }

 private:
  using Pair = LanePair<Way::kLayout>;

  template <class Visit>
  static __device__ void for_each_pair(const Visit& visit) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int j = 0; j < kLanePairs; ++j) {
        visit(half, j);
      }
    }
  }

  __device__ std::uint32_t turns(int half, int j) const {
    if constexpr (Way::kTurn == Turn::kIncrements) {
      return (steps_ + 8 * half) * increments_[j];
    } else {
      const std::uint32_t two = phases_.of[half][j / 2];
      return j % 2 == 0 ? two << 16 : two & 0xFFFF0000U;
    }
  }

  std::uint32_t increments_[kLanePairs], steps_;
  LaneWords<Way::kLayout> phases_;
  float sine_[2][kLanePairs], cosine_[2][kLanePairs];
};

/// Where the torque on a pair of a tile's token is among those of the tile, in bytes. The exclusive
/// or puts what a warp writes at once into different banks, in either layout, and what it reads of
/// a token.
inline constexpr unsigned kTorqueBytes = kPairs * sizeof(float);  // of a token
__device__ inline unsigned torque_at(unsigned row, unsigned pair) {
  return row * kTorqueBytes + (pair ^ (row % 4 * 8 + row / 4 % 2 * 4)) * sizeof(float);
}

/// What the warps that sum torque exchange.
struct GateStage {
  static constexpr unsigned kWarps = kGroupThreads / kWarp;
  static constexpr unsigned kTokens = 64 / kWarps;  // of a tile, that a warp has
  float sums[2][kWarps][kPairs];            // over a warp's tokens, of the tiles of two groups
  alignas(16) float log2[kWarps][kTokens];  // of f
};

/// Leaves a group's torque on a tile, the gradient of its phases in radians, which needs only
/// rotated values. query(step) and key(step) are what a left factor has of q and k for a step.
template <RotaryLayout kLayout, class Query, class Key>
__device__ void leave_torque(const Query& query, const GroupSums& dq, const Key& key,
                             const GroupSums& dk, std::byte* tile) {
  using Pair = LanePair<kLayout>;
  constexpr int kSteps = Pair::kHalf ? 2 : 4;  // then y is two steps after x, or with it
  const int thread = read_thread();
  const auto row = static_cast<unsigned>(row_of(thread));
  const auto first = static_cast<unsigned>(Pair::first(thread));
  // What a fragment has in the place of element i of GroupSums.
  const auto element = [](const Fragment& f, int i) {
    const float2 two = unpack_bf16(f.part[i / 2 % 4]);
    return i % 2 == 0 ? two.x : two.y;
  };
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const Fragment query_x = query(step);
    const Fragment query_y = Pair::kHalf ? query(step + 2) : query_x;
    const Fragment key_x = key(step);
    const Fragment key_y = Pair::kHalf ? key(step + 2) : key_x;
#pragma unroll
    for (int i = 0; i < kLanePairs / kSteps; ++i) {
      const int half = i % 2;
      const int j = step * kLanePairs / kSteps + i / 2 * 2;
      const auto torque = [&](int j) {
        const int x = Pair::x(half, j);
        const int y = Pair::y(half, j);
        return element(query_x, x) * dq[y] - element(query_y, y) * dq[x] +
               element(key_x, x) * dk[y] - element(key_y, y) * dk[x];
      };
      const auto at = [&](int j) {
        return tile + torque_at(row + 8 * half, first + static_cast<unsigned>(Pair::offset(j)));
      };
      if constexpr (Pair::kHalf) {  // then the next pair is the next place
        *reinterpret_cast<float2*>(at(j)) = {torque(j), torque(j + 1)};
      } else {
        *reinterpret_cast<float*>(at(j)) = torque(j);
        *reinterpret_cast<float*>(at(j + 1)) = torque(j + 1);
      }
    }
  }
}

/// Which part of qkv a tile belongs to.
enum Part : int { kQuery, kKey, kValue };

/// Writes a finished tile and adds its columns, as they are written, to those of the head's tiles
/// before it. Each warp passes its rows through 1024 bytes of its own.
__device__ inline void store_and_sum(const GroupSums& tile, void* memory, WarpStage* group,
                                     Part part, bool first, bf16* to, std::int64_t stride) {
  constexpr std::uint32_t kOnes = 0x3F803F80U;  // two bf16
  const int thread = read_thread();
  const int lane = thread % 32;
  const WarpStage::Rows rows{shared_address(memory)};
  // The sums are the transpose of 16 columns times zeros with ones in column 2 i, for the i-th 16
  // columns: all end in one result, where this lane has channels 16 (lane % 4) + lane / 4 + {0, 8}.
  float* const own = group[thread / 32].sums[part] + lane % 4 * 16 + lane / 4;
  float sums[4] = {first ? 0.0F : own[0], 0.0F, first ? 0.0F : own[8], 0.0F};
#pragma unroll
  for (int side = 0; side < 2; ++side) {
    __syncwarp();  // what was there before has been read
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float* sixteen = tile + 16 * side + 8 * i;
      Fragment f;
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        f.part[k] = pack_bf16(sixteen[2 * k], sixteen[2 * k + 1]);
      }
      store_fragment(rows.at(lane % 16, 2 * i + lane / 16), f);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const Fragment f = rows.load_right(0, i, lane);
      const std::uint32_t ones = lane / 4 == 2 * (2 * side + i) ? kOnes : 0;
      multiply_add(sums, {{f.part[0], f.part[2], f.part[1], f.part[3]}}, ones, ones);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      __stcs(reinterpret_cast<uint4*>(to + (row_of(thread) + 8 * i) * stride + side * 32 +
                                      lane % 4 * 8),
             piece_of(memory, lane, i));
    }
  }
  own[0] = sums[0];
  own[8] = sums[2];
}

}  // namespace carope::cuda::tiled
