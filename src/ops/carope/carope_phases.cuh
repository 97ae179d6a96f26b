#pragma once

#include "ops/carope/carope_scan.cuh"
#include "ops/cuda/early_start.cuh"

// Phases that others rotate by, of heads with 32 pairs. With nothing to rotate they can stay in
// registers from the first sum to the last, and a block meets at one barrier a tile.
namespace carope::cuda {

/// How a block cuts a tile: a warp has 32 tokens, which are eight runs of four; a run has four
/// lanes, each with a quarter of the pairs: two of every group, f^8 apart from the next two.
struct PhaseTile {
  static constexpr int kPairs = 32;
  static constexpr int kLanes = 4;  // of a run, and tokens: a lane computes one gate
  static constexpr int kOwn = kPairs / kLanes;
  static constexpr int kRuns = static_cast<int>(kWarp) / kLanes;
  static constexpr int kWarps = 8;
  static constexpr int kThreads = kWarps * static_cast<int>(kWarp);
  static constexpr int kTokens = kThreads;

  // Tiles take turns with two places, so that no warp has to wait until all have read.
  std::uint32_t total[2][kWarps][kPairs];  // of a warp's tokens, since a document began in them
  bool begun[2][kWarps];                   // whether one did
  alignas(16) std::uint32_t words[kWarps][kRuns * kLanes * kPairs / 2];

  /// Whether phases_kernel takes a call: it knows carries where tiles begin, and nowhere else.
  static bool takes(const CaropeArgs& args) {
    constexpr int kMostBlocks = 65535;  // in a grid's second and third dimension
    return args.head.pairs == kPairs && (args.chunks == 1 || args.chunk % kTokens == 0) &&
           args.spans <= kMostBlocks && args.batch <= kMostBlocks;
  }
};

/// What a thread does in a tile. Its pairs are summed over its run; then the warp's runs are
/// joined, one pair a lane, and what came before a run is handed back to its lanes.
template <bool kDocuments>
class PhaseThread {
 public:
  static constexpr int kLanes = PhaseTile::kLanes;
  static constexpr int kRuns = PhaseTile::kRuns;
  static constexpr int kOwn = PhaseTile::kOwn;
  using Words = Vec<std::uint32_t, 4>;

  __device__ explicit PhaseThread(PhaseTile& tile)
      : tile_(tile),
        warp_(static_cast<int>(threadIdx.x / kWarp)),
        lane_(static_cast<int>(threadIdx.x % kWarp)),
        run_(lane_ / kLanes),
        part_(lane_ % kLanes),
        words_(tile.words[warp_]) {}

  /// The pair that this thread joins runs of: those of the run's first lane come first.
  __device__ int pair() const {
    return kGroup * (lane_ / 16 * 2 + lane_ % 4 / 2) + lane_ / 4 % 4 * 2 + lane_ % 2;
  }
  __device__ bool leaves_carry() const { return warp_ == 0; }
  /// The first token of the run, in the tile.
  __device__ int first() const { return static_cast<int>(threadIdx.x) - part_; }

  /// Sums the increments of each run by itself. `frequency` and `starts`, whether it begins a
  /// document, are those of this thread's token.
  __device__ void sum_run(std::uint32_t frequency, bool starts, int exponent_start) {
    starts_ = kDocuments ? __ballot_sync(kAllLanes, starts) : 0;
#pragma unroll
    for (int i = 0; i < kLanes; ++i) {
      const Squares f = Squares::of(__shfl_sync(kAllLanes, frequency, i, kLanes));
      Powers even(f, 2 * part_, exponent_start);
      Powers odd(f, 2 * part_ | 1, exponent_start);
      const bool continues = i > 0 && (starts_ >> (run_ * kLanes + i) & 1) == 0;
#pragma unroll
      for (int k = 0; k < kOwn; k += 2) {
        phase_[i][k] = even.turns() + (continues ? phase_[i - 1][k] : 0);
        phase_[i][k + 1] = odd.turns() + (continues ? phase_[i - 1][k + 1] : 0);
        even.skip(1);
        odd.skip(1);
      }
    }
  }

  /// Leaves the sum of the warp's tokens to the other warps.
  __device__ void sum_warp(int turn) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      Words sums;
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        sums.at[k] = phase_[kLanes - 1][4 * half + k];
      }
      sums.store(words_ + sum_at(run_, 16 * half + 4 * part_));
    }
    __syncwarp();
    std::uint32_t total = 0;
#pragma unroll
    for (int run = 0; run < kRuns; ++run) {
      sum_[run] = words_[sum_at(run, lane_)];
      total = after(run, total);
    }
    tile_.total[turn][warp_][lane_] = total;
    if (kDocuments && lane_ == 0) {
      tile_.begun[turn][warp_] = starts_ != 0;
    }
  }

  /// The phase of this thread's pair after warps `from` up to `to`.
  __device__ std::uint32_t through(int turn, int from, int to, std::uint32_t phase) const {
#pragma unroll 4
    for (int warp = from; warp < to; ++warp) {
      const bool begun = kDocuments && tile_.begun[turn][warp];
      phase = tile_.total[turn][warp][lane_] + (begun ? 0 : phase);
    }
    return phase;
  }
  __device__ std::uint32_t before_warp(int turn, std::uint32_t phase) const {
    return through(turn, 0, warp_, phase);
  }

  /// Adds to every token of the warp what came before its run. `phase` is that before the warp.
  __device__ void join(std::uint32_t phase) {
#pragma unroll
    for (int run = 0; run < kRuns; ++run) {
      words_[sum_at(run, lane_)] = phase;
      phase = after(run, phase);
    }
    __syncwarp();
    const Words before[2] = {Words::load(words_ + sum_at(run_, 4 * part_)),
                             Words::load(words_ + sum_at(run_, 16 + 4 * part_))};
    const unsigned starts = starts_ >> (run_ * kLanes);
#pragma unroll
    for (int i = 0; i < kLanes; ++i) {
      const bool continues = (starts & ((2U << i) - 1)) == 0;
#pragma unroll
      for (int k = 0; k < kOwn; ++k) {
        phase_[i][k] += continues ? before[k / 4].at[k % 4] : 0;
      }
    }
    __syncwarp();  // all have read: the words serve the next step
  }

  /// Writes phases, rounded to 2^-16 turns, of the first `count` tokens of the run to `to`, where
  /// the head's next token is `stride` further. Lanes exchange their parts: each gets one group.
  __device__ void store(std::uint16_t* to, int stride, int count) const {
    constexpr std::uint32_t kHalf = 0x8000;
    constexpr unsigned kUpperHalves = 0x7632;
#pragma unroll
    for (int i = 0; i < kLanes; ++i) {
#pragma unroll
      for (int k = 0; k < kOwn; k += 2) {
        words_[group_at(i, k / 2) + part_] =
            __byte_perm(phase_[i][k] + kHalf, phase_[i][k + 1] + kHalf, kUpperHalves);
      }
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kLanes; ++i) {
      const auto group = *reinterpret_cast<const uint4*>(words_ + group_at(i, part_));
      if (i < count) {
        *reinterpret_cast<uint4*>(to + i * stride + part_ * kGroup) = group;
      }
    }
    __syncwarp();  // all have read: the words serve the next tile
  }

 private:
  /// The phase after a run of the warp.
  __device__ std::uint32_t after(int run, std::uint32_t phase) const {
    const bool begun = (starts_ >> (run * kLanes) & 0xF) != 0;
    return sum_[run] + (begun ? 0 : phase);
  }
  /// Where a run's sum is of the pair that `lane` joins. A warp's second half is shifted by 16
  /// words, so that it meets other banks than the first.
  __device__ static int sum_at(int run, int lane) { return run * 16 + lane + lane / 16 * 128; }
  /// Where a group of the run's token i is. The exclusive or puts groups into different banks.
  __device__ int group_at(int i, int group) const {
    return ((i * kLanes + group) * kRuns + (run_ ^ (2 * group))) * 4;
  }

  PhaseTile& tile_;
  int warp_, lane_, run_, part_;
  std::uint32_t* words_;
  unsigned starts_;                    // bits of the warp's tokens that begin a document
  std::uint32_t phase_[kLanes][kOwn];  // of the run's tokens
  std::uint32_t sum_[kRuns];           // of one pair
};

/// Leaves the phases of one head over a span, and carries, as rotate_kernel does.
template <class T, bool kDocuments>
__global__ void __launch_bounds__(PhaseTile::kThreads, 4)
    phases_kernel(const CaropeArgs args, T* qkv, std::uint16_t* phases) {
  constexpr int kTokens = PhaseTile::kTokens;
  __shared__ PhaseTile tile;
  let_next_begin();
  wait_for_previous();
  const auto head = static_cast<int>(blockIdx.x);
  const auto part = static_cast<int>(blockIdx.y);
  const auto row = static_cast<int>(blockIdx.z);
  const HeadRow gates = args.row_of(row, head);
  const bool whole = args.spans == 1;
  const int end = whole ? args.length : args.chunk_end(part);
  const auto token_at = [&](int begin) {
    return min(begin + static_cast<int>(threadIdx.x), end - 1);
  };
  const auto logit_at = [&](int begin) {
    return gates.logits[static_cast<std::int64_t>(token_at(begin)) * gates.heads];
  };
  PhaseThread<kDocuments> thread(tile);
  int begin = part * args.chunk;
  int chunk = part;
  std::uint32_t before = whole ? 0 : args.carry[args.carry_at(row, part, head) + thread.pair()];
  float next = logit_at(begin);
  for (int turn = 0; begin < end; begin += kTokens, turn ^= 1) {
    if (begin == chunk * args.chunk) {
      if (whole && thread.leaves_carry()) {
        args.carry[args.carry_at(row, chunk, head) + thread.pair()] = before;
      }
      ++chunk;
    }
    const float logit = next;
    const bool more = begin + kTokens < end;
    const std::uint32_t frequency = gate_of(logit).frequency;
    if (isnan(logit)) {  // as rotate_kernel does
      qkv[args.query_at(row, token_at(begin), head)] = from_float<T>(logit);
    }
    if (more) {
      next = logit_at(begin + kTokens);
    }
    const bool starts = kDocuments && gates.document_start[token_at(begin)] ==
                                          begin + static_cast<int>(threadIdx.x);
    thread.sum_run(frequency, starts, args.exponent_start);
    thread.sum_warp(turn);
    __syncthreads();
    const std::uint32_t phase = thread.before_warp(turn, before);
    if (more) {
      before = thread.through(turn, 0, PhaseTile::kWarps, before);
    }
    thread.join(phase);
    const int first = begin + thread.first();
    thread.store(phases + args.phase_at(row, first, head), args.heads * PhaseTile::kPairs,
                 end - first);
  }
}

}  // namespace carope::cuda
