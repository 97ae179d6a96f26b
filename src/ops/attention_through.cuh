#pragma once

#include "ops/attention_problem.cuh"
#include "ops/rotate.cuh"
#include "ops/warpgroup.cuh"

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
  static constexpr bool kTorque = false;
};
template <Turn kBy, RotaryLayout kPairsAre, bool kWithTorque>
struct GoesOn {
  static constexpr bool kGoesOn = true;
  static constexpr Turn kTurn = kBy;
  static constexpr RotaryLayout kLayout = kPairsAre;
  static constexpr bool kTorque = kWithTorque;
};

/// AttentionInput as the kernel sees it.
struct Input {
  const std::uint32_t* increments = nullptr;  // [P]
  const std::uint16_t* phases = nullptr;      // [B, T, H, P]
  std::uint16_t* torque = nullptr;            // [B, T, H, P], bits of bf16
  float* shares = nullptr;                    // [B, groups, 3, C]: sums of dqkv's columns, or null
};

inline constexpr int kPairs = 32;     // of a head
inline constexpr int kLanePairs = 8;  // that a lane has of each of its two rows

/// The thread's number in its group, read anew: what follows from it is computed where a tile ends,
/// instead of occupying registers all the time before.
__device__ inline int read_thread() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread % kGroupThreads;
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

/// 16 bits for each pair that a lane has of its two rows, two pairs a word.
template <RotaryLayout kLayout>
struct LaneWords {
  using Pair = LanePair<kLayout>;
  std::uint32_t of[2][kLanePairs / 2];

  /// From a tensor [B, T, H, P], or to it.
  __device__ void load(const std::uint16_t* tensor, const Problem<bf16>& p, int head, int tile) {
    visit(tensor, p, head, tile, [](std::uint32_t& word, const std::uint16_t* a, int to_b) {
      if constexpr (Pair::kHalf) {
        word = *reinterpret_cast<const std::uint32_t*>(a);
      } else {
        word = a[0] | std::uint32_t{a[to_b]} << 16;
      }
    });
  }
  __device__ void store(std::uint16_t* tensor, const Problem<bf16>& p, int head, int tile) {
    visit(tensor, p, head, tile, [](std::uint32_t word, std::uint16_t* a, int to_b) {
      if constexpr (Pair::kHalf) {
        *reinterpret_cast<std::uint32_t*>(a) = word;
      } else {
        a[0] = static_cast<std::uint16_t>(word);
        a[to_b] = static_cast<std::uint16_t>(word >> 16);
      }
    });
  }

 private:
  /// Calls visit(word, its first pair, distance to its second).
  template <class T, class Visit>
  __device__ void visit(T* tensor, const Problem<bf16>& p, int head, int tile, const Visit& visit) {
    const int thread = read_thread();
    T* const row = pairs_of(tensor, p, head, tile * 64 + row_of(thread)) + Pair::first(thread);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int j = 0; j < kLanePairs; j += 2) {
        visit(of[half][j / 2], row + half * 8 * p.heads * kPairs + Pair::offset(j),
              Pair::offset(j + 1) - Pair::offset(j));
      }
    }
  }
};

/// The angles by which a lane's pairs of a tile were rotated.
template <class Way>
class LaneTurns {
 public:
  __device__ void load(const Input& input, const Problem<bf16>& p, int head, int tile) {
    if constexpr (Way::kTurn == Turn::kIncrements) {
      const int thread = read_thread();
      steps_ = tile * 64 + row_of(thread) + 1;
#pragma unroll
      for (int j = 0; j < kLanePairs; ++j) {
        increments_[j] = input.increments[Pair::first(thread) + Pair::offset(j)];
      }
    } else if constexpr (Way::kTurn == Turn::kPhases) {
      phases_.load(input.phases, p, head, tile);
    }
  }

  __device__ void undo(GroupSums& sums) const {
    if constexpr (Way::kTurn != Turn::kNone) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int j = 0; j < kLanePairs; ++j) {
          float sine, cosine;
          sincos_turns<bf16>(turns(half, j), sine, cosine);
          float& x = sums[Pair::x(half, j)];
          float& y = sums[Pair::y(half, j)];
          const float turned = x * cosine + y * sine;
          y = y * cosine - x * sine;
          x = turned;
        }
      }
    }
  }

 private:
  using Pair = LanePair<Way::kLayout>;

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
};

/// Where a warp's finished rows pass through shared memory, 32 channels at a time, and its sums of
/// columns over a head's rows.
struct alignas(128) WarpStage {
  using Rows = SharedRows<32>;
  std::byte rows[16 * Rows::kRowBytes];
  float sums[3][2 * kPairs];  // of dq, dk and dv
};

/// The gradients of a lane's phases, in radians, which need only the rotated values.
template <class Way>
class LaneTorque {
 public:
  /// Replaces what there is by that of q or k and its gradient, or adds it. value(step) is what a
  /// left factor has of q or k for a step.
  template <class Value>
  __device__ void set(const Value& value, const GroupSums& gradient) {
    update<false>(value, gradient);
  }
  template <class Value>
  __device__ void add(const Value& value, const GroupSums& gradient) {
    update<true>(value, gradient);
  }

  /// Leaves it in shared memory until it is taken from there.
  __device__ void leave(WarpStage* group) const {
    if constexpr (Way::kTorque) {
      __syncwarp();  // what was there before has been read
      std::uint32_t* const there = place(group);
#pragma unroll
      for (int i = 0; i < kLanePairs; ++i) {
        there[32 * i] = words_.of[i / 4][i % 4];
      }
    }
  }
  __device__ void take(WarpStage* group) {
    if constexpr (Way::kTorque) {
      const std::uint32_t* const there = place(group);
#pragma unroll
      for (int i = 0; i < kLanePairs; ++i) {
        words_.of[i / 4][i % 4] = there[32 * i];
      }
    }
  }

  __device__ void store(const Input& input, const Problem<bf16>& p, int head, int tile) {
    if constexpr (Way::kTorque) {
      words_.store(input.torque, p, head, tile);
    }
  }

 private:
  using Pair = LanePair<Way::kLayout>;

  static __device__ std::uint32_t* place(WarpStage* group) {
    static_assert(sizeof(WarpStage::rows) == sizeof(words_) * kWarp);
    const int thread = read_thread();
    return reinterpret_cast<std::uint32_t*>(group[thread / 32].rows) + thread % 32;
  }

  template <bool kAdd, class Value>
  __device__ void update(const Value& value, const GroupSums& gradient) {
    if constexpr (Way::kTorque) {
      constexpr int kSteps = Pair::kHalf ? 2 : 4;  // then y is two steps after x, or with it
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const Fragment x = value(step);
        const Fragment y = Pair::kHalf ? value(step + 2) : x;
#pragma unroll
        for (int i = 0; i < kLanePairs / kSteps; ++i) {
          const int half = i % 2;
          const int j = step * kLanePairs / kSteps + i / 2 * 2;
          const auto torque = [&](int j) {
            const int at_x = Pair::x(half, j);
            const int at_y = Pair::y(half, j);
            return element(x, at_x) * gradient[at_y] - element(y, at_y) * gradient[at_x];
          };
          std::uint32_t& word = words_.of[half][j / 2];
          const float2 before = kAdd ? unpack_bf16(word) : float2{0.0F, 0.0F};
          word = pack_bf16(before.x + torque(j), before.y + torque(j + 1));
        }
      }
    }
  }

  /// What a fragment has in the place of element i of GroupSums.
  __device__ static float element(const Fragment& f, int i) {
    const float2 two = unpack_bf16(f.part[i / 2 % 4]);
    return i % 2 == 0 ? two.x : two.y;
  }

  LaneWords<Way::kLayout> words_;
};

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
      const std::uint32_t staged = rows.at(8 * i + lane / 4, lane % 4) - rows.base;
      __stwb(reinterpret_cast<uint4*>(to + (row_of(thread) + 8 * i) * stride + side * 32 +
                                      lane % 4 * 8),
             *reinterpret_cast<const uint4*>(static_cast<const std::byte*>(memory) + staged));
    }
  }
  own[0] = sums[0];
  own[8] = sums[2];
}

}  // namespace carope::cuda::tiled
