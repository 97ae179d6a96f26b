#pragma once

#include "ops/attention/attention_hopper_phases.cuh"

// How the forward pass of attention on Hopper is spread over a block: what is in shared memory, and
// the group of threads that brings tiles there and rotates them.
namespace carope::cuda::tiled {

inline constexpr int kSlots = kMaxTiles + 3;  // for tiles of keys and values
inline constexpr int kAhead = 3;              // tiles that are brought while one is rotated
/// More than these, so that two tiles can be rotated before the queries of the one before are
/// taken: a head's first tiles are attended from faster than they are brought.
inline constexpr int kQuerySlots = kAhead + 2;
/// Registers of a thread. Those of three groups must not exceed 504 together.
inline constexpr int kAttendingRegisters = 208;
inline constexpr int kBringingRegisters = 88;
/// A thread that brings tiles has one of the four groups of eight pairs, of two of its warp's rows.
/// These are the tokens whose phases the warp computes.
inline constexpr int kWarpRows = PhaseCut::kTokens;
inline constexpr int kRowStep = kWarp / kPairGroups;
inline constexpr int kRowsEach = kWarpRows / kRowStep;
static_assert(kRowStep % 8 == 0);  // so the permutation stays the same

struct alignas(1024) ForwardMemory {
  TileBytes keys[kSlots];
  TileBytes values[kSlots];
  TileBytes queries[kQuerySlots];
  PhaseMemory phases;
  std::uint64_t filled[kSlots], free[kSlots], queries_free[kQuerySlots];
};
static_assert(sizeof(ForwardMemory) <= 227 * 1024);  // what Hopper lends a block

__device__ inline void init_barriers(ForwardMemory& shared) {
  for (int i = 0; i < kSlots; ++i) {
    barrier_at(shared.filled[i]).init(kGroupThreads);
    barrier_at(shared.free[i]).init(kConsumers);
  }
  for (auto& barrier : shared.queries_free) {
    barrier_at(barrier).init(kGroupThreads);
  }
}

/// Brings tiles and rotates them.
template <Turn kTurn, RotaryLayout kLayout>
class Bringer {
 public:
  __device__ Bringer(const Problem<bf16>& p, const RotationArgs& rotation, ForwardMemory& shared)
      : p_(p),
        rotation_(rotation),
        shared_(shared),
        phases_(p, rotation.logits, rotation.exponent_start, shared.phases),
        group_(threadIdx.x % kPairGroups) {
    // Eight lanes access shared memory together: two rows, which must meet different banks.
    const int row = threadIdx.x % kWarp / kPairGroups;
    row_of_warp_ = kHalf ? row % 2 * 4 + row / 2 : row;
    row_ = threadIdx.x % kGroupThreads / kWarp * kWarpRows + row_of_warp_;
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      piece_[side] = kHalf ? group_ + side * kPairGroups : 2 * group_ + side;
      offset_[side] = row_ * Rows64::kRowBytes + (piece_[side] ^ row_ % 8) * 16;
    }
    if constexpr (kTurn == Turn::kIncrements) {
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        increments_[i] = rotation.increments[group_ * kGroup + i];
      }
    }
  }

  __device__ void run() {
    const int heads = p_.batch * p_.heads;
    if constexpr (kTurn == Turn::kPhases) {
      phases_.begin();
    }
    Cursor brought, finished;
    brought.seek(p_, blockIdx.x, row_);
    finished = brought;
    for (int n = 0; finished.head < heads; ++n) {
      if (n >= kAhead) {
        wait_for_copies<kAhead - 1>();
        finish(n - kAhead, finished);
        finished.advance(p_, row_);
      }
      if constexpr (kTurn == Turn::kPhases) {
        // Before a wait that may be long; q and k need not have arrived.
        if (n >= kAhead - 1 && finished.head < heads) {
          phases_.make(finished.tile);
        }
      }
      if (brought.head < heads) {
        barrier_at(shared_.queries_free[n % kQuerySlots]).wait(n / kQuerySlots - 1);
        barrier_at(shared_.free[n % kSlots]).wait(n / kSlots - 1);
        start(n, brought);
        brought.advance(p_, row_);
      }
      close_copies();
    }
  }

 private:
  static constexpr bool kHalf = kLayout == RotaryLayout::kHalf;
  using Pairs = Group<bf16, kHalf ? Access::kHalf : Access::kInterleaved>;

  /// The thread's first row of q; k and v are one and two `width`s on.
  __device__ bf16* query_at(const Cursor& at) const {
    return static_cast<bf16*>(rotation_.q.data) +
           static_cast<std::int64_t>(at.token) * (3 * width()) + at.number_of_head * kDim;
  }
  __device__ int width() const { return p_.heads * kDim; }

  __device__ void start(int n, const Cursor& at) const {
    const bf16* const query = query_at(at);
    copy(shared_.queries[n % kQuerySlots], query);
    copy(shared_.keys[n % kSlots], query + width());
    copy(shared_.values[n % kSlots], query + 2 * width());
  }

  __device__ void copy(const TileBytes& to, const bf16* from) const {
    const std::uint32_t target = shared_address(to);
#pragma unroll
    for (int i = 0; i < kRowsEach; ++i) {
#pragma unroll
      for (int side = 0; side < 2; ++side) {
        copy_16_bytes(target + offset_[side] + i * kRowStep * Rows64::kRowBytes,
                      from + i * kRowStep * 3 * width() + piece_[side] * 8, true);
      }
    }
  }

  /// Rotates a tile that has arrived, of which each thread reads only what it copied, and hands it
  /// on.
  __device__ void finish(int n, const Cursor& at) const {
    if constexpr (kTurn != Turn::kNone) {
      bf16* const query = query_at(at);
      std::uint16_t* const phases = rotation_.phases == nullptr
                                        ? nullptr
                                        : rotation_.phases + at.gate(p_) * kPairs + group_ * kGroup;
#pragma unroll
      for (int i = 0; i < kRowsEach; ++i) {
        std::uint32_t phase[kGroup];
        take_phases(phase, at.tile, i,
                    phases == nullptr ? nullptr : phases + i * kRowStep * p_.heads * kPairs);
        const auto rotation = GroupRotation::by<bf16>(phase, Direction::kForward);
        bf16* const row = query + i * kRowStep * 3 * width();
        rotate(shared_.queries[n % kQuerySlots], i, row, rotation, spoils(at.tile, i));
        rotate(shared_.keys[n % kSlots], i, row + width(), rotation, false);
      }
    }
    publish_to_products();
    barrier_at(shared_.filled[n % kSlots]).arrive();
  }

  /// The phases of one of the thread's rows. Those that were computed are rounded, so that the
  /// backward pass can undo the rotation by what is stored at `to`, unless that is null.
  __device__ void take_phases(std::uint32_t (&phase)[kGroup], int tile, int i,
                              std::uint16_t* to) const {
    if constexpr (kTurn == Turn::kIncrements) {
      const std::uint32_t steps = tile * kTile + row_ + i * kRowStep + 1;
#pragma unroll
      for (int j = 0; j < kGroup; ++j) {
        phase[j] = steps * increments_[j];
      }
    } else {
      const uint4 eight = phases_.eight(row_of_warp_ + i * kRowStep, group_);
      if (to != nullptr) {
        __stwb(reinterpret_cast<uint4*>(to), eight);
      }
      const std::uint32_t two[] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
      for (int j = 0; j < kGroup; ++j) {
        phase[j] = j % 2 == 0 ? two[j / 2] << 16 : two[j / 2] & 0xFFFF0000U;
      }
    }
  }

  /// A phase in turns cannot be NaN, so a NaN logit is put into the query: it must reach the loss.
  __device__ bool spoils(int tile, int i) const {
    return kTurn == Turn::kPhases && phases_.passes_on_nan(tile, row_of_warp_ + i * kRowStep);
  }

  __device__ void rotate(TileBytes& bytes, int i, bf16* to, const GroupRotation& rotation,
                         bool to_nan) const {
    std::byte* const row = bytes + i * kRowStep * Rows64::kRowBytes;
    auto* const first = reinterpret_cast<bf16*>(row + offset_[0]);
    auto* const second = reinterpret_cast<bf16*>(row + offset_[1]);
    Pairs pairs = Pairs::load(first, second);
    rotation.apply(pairs);
    if (to_nan) {
      pairs.set_two(0, NAN, pairs.y(0), pairs.x(1), pairs.y(1));
    }
    pairs.store(first, second);
    pairs.store(to + piece_[0] * 8, to + piece_[1] * 8);
  }

  const Problem<bf16>& p_;
  const RotationArgs& rotation_;
  ForwardMemory& shared_;
  TilePhases phases_;
  int group_;        // of pairs
  int row_;          // the thread's first in the tile,
  int row_of_warp_;  // and among those of its warp
  int piece_[2];     // of a row, that hold the thread's pairs
  int offset_[2];    // of these in a tile, in bytes
  std::uint32_t increments_[kGroup];
};

}  // namespace carope::cuda::tiled
