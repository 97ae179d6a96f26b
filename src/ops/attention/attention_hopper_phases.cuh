#pragma once

#include "ops/attention/attention_hopper_tiles.cuh"
#include "ops/rotation/gated_scan.cuh"

// The phases that CARoPE turns q and k by, as the group of threads that brings tiles computes them
// from gate logits, tile after tile of each head. A warp has a quarter of a tile's tokens, and
// meets the others only to learn what theirs add.
namespace carope::cuda::tiled {

inline constexpr int kPairGroups = kPairs / kGroup;

/// Where a thread is in the tiles of its block, which takes head after head.
struct Cursor {
  int head, tile;
  int token;           // the thread's first one
  int number_of_head;  // within its batch row

  __device__ void seek(const Problem<bf16>& p, int to_head, int row) {
    head = to_head;
    tile = 0;
    token = head / p.heads * p.queries + row;
    number_of_head = head % p.heads;
  }
  __device__ void advance(const Problem<bf16>& p, int row, int tiles = 1) {
    tile += tiles;
    token += tiles * kTile;
    if (tile * kTile == p.queries) {
      seek(p, head + gridDim.x, row);
    }
  }
  /// Which of all tokens' heads that is.
  __device__ std::int64_t gate(const Problem<bf16>& p) const {
    return static_cast<std::int64_t>(token) * p.heads + number_of_head;
  }
};

/// How a tile is cut: a warp's tokens are eight runs of two, and a run has four lanes, each with a
/// quarter of the pairs: two of every group, f^8 apart from the next two.
struct PhaseCut {
  static constexpr int kWarps = kGroupThreads / kWarp;
  static constexpr int kTokens = kTile / kWarps;  // of a warp
  static constexpr int kLanes = 4;                // of a run
  static constexpr int kRuns = kWarp / kLanes;
  static constexpr int kRun = kTokens / kRuns;
  static constexpr int kOwn = kPairs / kLanes;
  static constexpr int kTilesAtOnce = kWarp / kTokens;  // that a warp computes gates of
  static_assert(kRun == 2 && kOwn == kGroup && kTilesAtOnce == kGroups);
};

struct PhaseMemory {
  // Tiles take turns with two places, so that no warp has to wait until all have read.
  std::uint32_t total[2][PhaseCut::kWarps][kPairs];  // of a warp's tokens
  /// Each warp's: sums of runs, then what came before them, then phases of 16 bits.
  alignas(16) std::uint32_t words[PhaseCut::kWarps][PhaseCut::kRuns * kPairs];
};

/// A thread's part in this.
class TilePhases {
 public:
  __device__ TilePhases(const Problem<bf16>& p, const float* logits, int exponent_start,
                        PhaseMemory& memory)
      : p_(p),
        logits_(logits),
        exponent_start_(exponent_start),
        memory_(memory),
        warp_(threadIdx.x % kGroupThreads / kWarp),
        lane_(threadIdx.x % kWarp) {}

  /// Begins with the block's first head.
  __device__ void begin() {
    gates_.seek(p_, blockIdx.x, gate_row());
    load_gates();
  }

  /// Makes the phases of the next tile. They are there until the next call; before that, whoever
  /// reads them is done.
  __device__ void make(unsigned tile) {
    if (tile == 0) {
      before_ = 0;
    }
    if (tile % Cut::kTilesAtOnce == 0) {
      // A global load takes long: those for the next tiles are on their way in the meantime.
      frequency_ = gate_of(logit_).frequency;
      const unsigned nans = __ballot_sync(kAllLanes, isnan(logit_));
      nan_ = part() == 0 ? nans : 0;
      load_gates();
    }
    std::uint32_t phase[Cut::kRun][Cut::kOwn];
    sum_run(tile, phase);
    join(tile, phase);
    round(phase);
  }

  /// Eight phases, rounded to 2^-16 turns, of a token of the warp.
  __device__ uint4 eight(int token, int group) const {
    return *reinterpret_cast<const uint4*>(words() + piece_at(token, group));
  }

  /// Whether this lane has to pass on that a token of the warp, in the tile that make() was called
  /// for last, has a logit that is NaN: no phase can. Of lanes that share a token, the first has
  /// to.
  __device__ bool passes_on_nan(unsigned tile, int token) const {
    return (nan_ >> (tile % Cut::kTilesAtOnce * Cut::kTokens + token) & 1) != 0;
  }

 private:
  using Cut = PhaseCut;

  __device__ int run() const { return lane_ / Cut::kLanes; }
  __device__ int part() const { return lane_ % Cut::kLanes; }
  __device__ std::uint32_t* words() const { return memory_.words[warp_]; }

  /// From the first token of the first tile at once to the one whose gate this lane computes.
  __device__ int gate_row() const {
    return lane_ / Cut::kTokens * kTile + warp_ * Cut::kTokens + lane_ % Cut::kTokens;
  }
  __device__ void load_gates() {
    if (gates_.head < p_.batch * p_.heads) {
      logit_ = logits_[gates_.gate(p_)];
    }
    gates_.advance(p_, gate_row(), Cut::kTilesAtOnce);
  }

  /// Sums the increments of each run by itself.
  __device__ void sum_run(unsigned tile, std::uint32_t (&phase)[Cut::kRun][Cut::kOwn]) const {
    const auto first =
        static_cast<int>(tile % Cut::kTilesAtOnce * Cut::kTokens) + run() * Cut::kRun;
#pragma unroll
    for (int i = 0; i < Cut::kRun; ++i) {
      const Squares f = Squares::of(__shfl_sync(kAllLanes, frequency_, first + i));
      Powers even(f, 2 * part(), exponent_start_);
      Powers odd(f, 2 * part() | 1, exponent_start_);
#pragma unroll
      for (int k = 0; k < Cut::kOwn; k += 2) {
        phase[i][k] = even.turns() + (i > 0 ? phase[i - 1][k] : 0);
        phase[i][k + 1] = odd.turns() + (i > 0 ? phase[i - 1][k + 1] : 0);
        even.skip(1);
        odd.skip(1);
      }
    }
  }

  /// Adds what came before each run, and half of what rounding is about to cut off. A lane joins
  /// all runs of one pair.
  __device__ void join(unsigned tile, std::uint32_t (&phase)[Cut::kRun][Cut::kOwn]) {
    constexpr std::uint32_t kHalf = 0x8000;
    __syncwarp();  // the words of the tile before have been read
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::uint32_t* const sums = phase[Cut::kRun - 1] + 4 * half;
      four(half) = {sums[0], sums[1], sums[2], sums[3]};
    }
    __syncwarp();
    std::uint32_t sum[Cut::kRuns];
    std::uint32_t total = 0;
#pragma unroll
    for (int run = 0; run < Cut::kRuns; ++run) {
      sum[run] = words()[joined_at(run)];
      total += sum[run];
    }
    auto& totals = memory_.total[tile % 2];
    totals[warp_][lane_] = total;
    wait_at<kGroupThreads>(within(kGroups));
    std::uint32_t joined = before_ + kHalf;
#pragma unroll
    for (int warp = 0; warp < Cut::kWarps; ++warp) {
      const std::uint32_t of_warp = totals[warp][lane_];
      joined += warp < warp_ ? of_warp : 0;
      before_ += of_warp;
    }
#pragma unroll
    for (int run = 0; run < Cut::kRuns; ++run) {
      words()[joined_at(run)] = joined;
      joined += sum[run];
    }
    __syncwarp();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint4 before = four(half);
#pragma unroll
      for (int i = 0; i < Cut::kRun; ++i) {
        std::uint32_t* const sums = phase[i] + 4 * half;
        sums[0] += before.x;
        sums[1] += before.y;
        sums[2] += before.z;
        sums[3] += before.w;
      }
    }
    __syncwarp();  // all have read: the words serve the next step
  }
  /// Four of the words that the lane has in its run. Neighbouring runs have their halves swapped,
  /// so that both are in different banks.
  __device__ uint4& four(int half) const {
    return *reinterpret_cast<uint4*>(words() + run() * kPairs + 16 * (half ^ run() % 2) +
                                     4 * part());
  }
  /// Where a run has the word of the pair whose runs this lane joins.
  __device__ int joined_at(int run) const { return run * kPairs + (lane_ ^ run % 2 * 16); }

  /// Leaves upper halves. Lanes exchange their parts of groups.
  __device__ void round(const std::uint32_t (&phase)[Cut::kRun][Cut::kOwn]) const {
    constexpr unsigned kUpperHalves = 0x7632;
#pragma unroll
    for (int i = 0; i < Cut::kRun; ++i) {
#pragma unroll
      for (int k = 0; k < Cut::kOwn; k += 2) {
        words()[piece_at(run() * Cut::kRun + i, k / 2) + part()] =
            __byte_perm(phase[i][k], phase[i][k + 1], kUpperHalves);
      }
    }
    __syncwarp();
  }
  /// Where a token's group is, four words. Eight runs are written at once, and tokens four apart,
  /// or neighbours, are read at once: the exclusive or puts them into different banks.
  __device__ static int piece_at(int token, int group) {
    const int run = token / Cut::kRun;
    const int piece = token % Cut::kRun * kPairGroups + group;
    return run * kPairs + 4 * (piece ^ (run * 2 % 8 + run / 4));
  }

  const Problem<bf16>& p_;
  const float* logits_;  // [B, T, H]
  int exponent_start_;
  PhaseMemory& memory_;
  int warp_, lane_;
  Cursor gates_;             // of which logits are loaded next
  float logit_;              // of one token of the next tiles
  std::uint32_t frequency_;  // of one token of these
  unsigned nan_;             // bits of the warp's tokens in these tiles, in a token's first lane
  std::uint32_t before_;     // the phase before the tile of the pair whose runs this lane joins
};

}  // namespace carope::cuda::tiled
