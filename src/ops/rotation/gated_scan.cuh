#pragma once

#include <climits>

#include "ops/gate.h"
#include "ops/rotation/rotate.cuh"

// The phases of one head over a tile of tokens, by one block. They are the CPU's bits: the same
// fp64 operations in the same order, with its fused multiply-adds written out, and u32 sums.
namespace carope::cuda {

struct Gate {
  std::uint32_t frequency;  // f as a 32-bit fraction
  float slope;              // -(df/dz) / f = f σ(z)
};

/// The operations that GCC makes of simd_cpu.h where there are fused multiply-adds. Another choice
/// of what to fuse moves the last bit of some fp64 numbers, and one f in 10^8 by 2^-32.
struct ExactMath {
  static __device__ double abs(double x) { return fabs(x); }
  static __device__ double max(double a, double b) { return fmax(a, b); }
  static __device__ double divide(double a, double b) { return a / b; }
  static __device__ double exp_of_negative(double x) {
    constexpr double kLowest = -700.0;
    constexpr double kRounder = 0x1.8p52;
    const double clamped = fmax(x, kLowest);
    const double shifted = fma(clamped, 1.4426950408889634, kRounder);
    const double n = shifted - kRounder;
    const double r = fma(-n, 0x1.a39ef35793c76p-33, fma(-n, 0x1.62e42feep-1, clamped));
    double q = 1.0;
#pragma unroll
    for (int k = 11; k > 1; --k) {
      q = fma(q * r, 1.0 / k, 1.0);
    }
    q = fma(q, r, 1.0);  // a compiler leaves the factor 1 out, so that the product is not rounded
    return __longlong_as_double(__double_as_longlong(q) + (__double_as_longlong(shifted) << 52));
  }
  /// As 2 atanh(s).
  static __device__ double log1p(double y) {
    const double s = y / (2.0 + y);
    const double s2 = s * s;
    double series = 0.0;
#pragma unroll
    for (int k = 25; k > 0; k -= 2) {
      series = fma(series, s2, 1.0 / k);
    }
    return __dmul_rn(2.0 * s, series);
  }
};

/// fp32: for what no phase depends on.
struct FloatMath {
  static __device__ float divide(float a, float b) { return a / b; }
};

__device__ inline Gate gate_of(float logit) {
  constexpr double kOne = 0x1p32;
  constexpr double kLargest = kOne - 1.0;
  if (isnan(logit)) {
    return {0xFFFFFFFFU, logit};
  }
  const double z = logit;
  const double decayed = gate::decayed<ExactMath>(z);
  const double fraction = gate::frequency<ExactMath>(z, decayed, kOne);
  const double f = fraction < kLargest ? fraction : kLargest;
  const float sigmoid = gate::sigmoid<FloatMath>(logit, static_cast<float>(decayed));
  return {static_cast<std::uint32_t>(__double2loint(f + 0x1p52)),
          sigmoid * static_cast<float>(f * 0x1p-32)};
}

/// f, f^2, f^4 and f^8: one thread of a token computes them for all its pairs.
struct alignas(16) Squares {
  double first, second, fourth, eighth;

  __device__ static Squares of(std::uint32_t frequency) {
    Squares f;
    f.first = frequency * 0x1p-32;
    f.second = f.first * f.first;
    f.fourth = f.second * f.second;
    f.eighth = f.fourth * f.fourth;
    return f;
  }
};

/// f^0, f^1, ... in the order of multiplications of the CPU, which takes them eight at a time.
struct Powers {
  double value;
  double stride;  // f^8

  /// Begins at f^(lane + exponent_start), lane < 8.
  __device__ Powers(const Squares& f, int lane, int exponent_start)
      : value(((lane & 4) != 0 ? f.fourth : 1.0) * ((lane & 2) != 0 ? f.second : 1.0) *
              ((lane & 1) != 0 ? f.first : 1.0)),
        stride(f.eighth) {
    if (exponent_start > 0) {
      double start = f.first;
#pragma unroll 1
      for (int i = 1; i < exponent_start; ++i) {
        start *= f.first;
      }
      value *= start;
    }
  }

  __device__ void skip(int count) {
    for (int i = 0; i < count; ++i) {
      value *= stride;
    }
  }
  /// The power as turns, where one unit of it is so many.
  __device__ std::uint32_t turns(double unit = kTurnsPerRadian) const {
    return static_cast<std::uint32_t>(__double2loint(fma(value, unit, 0x1p52)));
  }
};

/// Small blocks: then a training step's are all on the multiprocessors at once, and while some
/// compute phases others move q and k.
inline constexpr int kScanThreads = 128;
inline constexpr int kRun = 8;     // tokens a thread scans
inline constexpr int kChains = 4;  // powers a thread takes at each of them, f^8 apart
inline constexpr int kTileTokens = kScanThreads;

/// How a block cuts a tile into runs of tokens and a head into quads of groups: each thread has one
/// run, one quad and one lane in each of its groups.
struct TileShape {
  int pairs;
  int quads;   // of groups
  int runs;    // in a tile
  int tokens;  // in a tile
  int row;     // words a token has in shared memory

  explicit TileShape(std::int64_t count)
      : pairs(static_cast<int>(count)),
        quads((pairs + kChains * kGroup - 1) / (kChains * kGroup)),
        runs(kScanThreads / (quads * kGroup)),
        tokens(runs * kRun),
        row(quads * kChains * kGroup) {}

  __host__ __device__ int tiles(std::int64_t length) const {
    return static_cast<int>((length + tokens - 1) / tokens);
  }
  /// Where eight words of a token's group begin. Runs are scanned side by side: the exclusive or
  /// puts their words into different banks.
  __device__ int group_at(int token, int group) const {
    return token * row + kGroup * (group ^ (token / kRun % kChains));
  }
  /// Where in its group a lane's word is. Neighbouring tokens have their halves of a group swapped,
  /// so that 16-byte accesses to two tokens meet different banks.
  __device__ static int lane_at(int token, int lane) { return lane ^ (token % 2 * 4); }
  __device__ int word_at(int token, int group, int lane) const {
    return group_at(token, group) + lane_at(token, lane);
  }
  __device__ int pair_at(int token, int pair) const {
    return word_at(token, pair / kGroup, pair % kGroup);
  }
};

/// The part of a scan that a thread does.
struct Worker {
  int lane, quad, run;

  __device__ explicit Worker(const TileShape& shape)
      : lane(static_cast<int>(threadIdx.x) % kGroup),
        quad(static_cast<int>(threadIdx.x) / kGroup % shape.quads),
        run(static_cast<int>(threadIdx.x) / (kGroup * shape.quads)) {}

  __device__ int group(int chain) const { return quad * kChains + chain; }
  __device__ int pair(int chain) const { return group(chain) * kGroup + lane; }
  __device__ int first() const { return run * kRun; }
  /// One past the last token of the run; nothing is left for threads that have no run.
  __device__ int end(const TileShape& shape, int count) const {
    return run < shape.runs ? min(first() + kRun, count) : 0;
  }
};

/// What a block keeps of a tile in shared memory.
struct Tile {
  alignas(16) std::uint32_t phase[kTileTokens * kChains * kGroup];  // from the run's begin on
  alignas(16) std::uint32_t before[kTileTokens / kRun * kChains * kGroup];  // phase before each run
  Squares frequency[kTileTokens];
  int start[kTileTokens];              // of the token's document, from the tile's first token on
  float gate[kTileTokens];             // logit, or slope for the backward pass
  std::uint32_t sum[kMaxRotaryPairs];  // phase before the tile, then after it

  /// Whether the document of a token began before its run.
  __device__ bool continues(int token) const { return start[token] < token / kRun * kRun; }
};

/// One head of one row, as a block sees it.
struct HeadRow {
  const float* logits;                 // the head's first; the next token's is `heads` further
  const std::int32_t* document_start;  // [T] or null
  const double* ratios;                // [P] or null
  int heads;                           // key heads
  int exponent_start;

  __device__ double ratio(int pair, int pairs) const {
    return ratios != nullptr && pair < pairs ? ratios[pair] : 1.0;
  }
};

enum class Keep : std::uint8_t { kLogit, kSlope };

template <Keep kKeep>
__device__ void load_gates(Tile& tile, const HeadRow& head, int begin, int count) {
  const int t = static_cast<int>(threadIdx.x);
  if (t < count) {
    const float logit = head.logits[static_cast<std::int64_t>(begin + t) * head.heads];
    const Gate gate = gate_of(logit);
    tile.frequency[t] = Squares::of(gate.frequency);
    tile.gate[t] = kKeep == Keep::kSlope ? gate.slope : logit;
    tile.start[t] =
        head.document_start == nullptr ? INT_MIN : head.document_start[begin + t] - begin;
  }
}

/// Sums the increments of each run by itself.
__device__ inline void scan_runs(Tile& tile, const TileShape& shape, const HeadRow& head,
                                 int count) {
  const Worker worker(shape);
  std::uint32_t sum[kChains] = {};
  for (int t = worker.first(); t < worker.end(shape, count); ++t) {
    const bool starts = tile.start[t] == t;
    Powers power(tile.frequency[t], worker.lane, head.exponent_start);
    power.skip(kChains * worker.quad);
#pragma unroll
    for (int chain = 0; chain < kChains; ++chain) {
      const double unit = head.ratio(worker.pair(chain), shape.pairs) * kTurnsPerRadian;
      sum[chain] = (starts ? 0 : sum[chain]) + power.turns(unit);
      tile.phase[shape.word_at(t, worker.group(chain), worker.lane)] = sum[chain];
      power.skip(1);
    }
  }
}

/// Calls visit(pair) for the pairs whose sums over tiles this thread keeps. They are in shared
/// memory: in registers they would take those that loads in flight need.
template <class Visit>
__device__ void for_own_pairs(int pairs, const Visit& visit) {
#pragma unroll 1
  for (int pair = static_cast<int>(threadIdx.x); pair < pairs; pair += kScanThreads) {
    visit(pair);
  }
}

/// Sums the runs in order.
__device__ inline void join_runs(Tile& tile, const TileShape& shape, int count) {
  for_own_pairs(shape.pairs, [&](int pair) {
    std::uint32_t phase = tile.sum[pair];
#pragma unroll 4
    for (int run = 0; run * kRun < count; ++run) {
      const int last = min((run + 1) * kRun, count) - 1;
      tile.before[run * shape.row + pair] = phase;
      phase = tile.phase[shape.pair_at(last, pair)] + (tile.continues(last) ? phase : 0);
    }
    tile.sum[pair] = phase;
  });
}

/// Fills the tile for `count` tokens from `begin` on and ends with a barrier. Whoever reads the
/// tile puts another one before the next call.
template <Keep kKeep>
__device__ void scan_tile(Tile& tile, const TileShape& shape, const HeadRow& head, int begin,
                          int count) {
  load_gates<kKeep>(tile, head, begin, count);
  __syncthreads();
  scan_runs(tile, shape, head, count);
  __syncthreads();
  join_runs(tile, shape, count);
  __syncthreads();
}

/// The phases of a token's group.
__device__ inline void phases_of(const Tile& tile, const TileShape& shape, int token, int group,
                                 std::uint32_t (&phase)[kGroup]) {
  using Words = Vec<std::uint32_t, 4>;
  const std::uint32_t* own = tile.phase + shape.group_at(token, group);
  const std::uint32_t* before = tile.before + token / kRun * shape.row + group * kGroup;
  const bool continues = tile.continues(token);
#pragma unroll
  for (int half = 0; half < kGroup; half += 4) {
    const Words a = Words::load(own + TileShape::lane_at(token, half));
    const Words b = Words::load(before + half);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      phase[half + i] = a.at[i] + (continues ? b.at[i] : 0);
    }
  }
}

/// The part of a rotation that a thread does: a group of pairs, of every so many tokens.
struct Slot {
  int group, first, step;

  __device__ explicit Slot(const HeadShape& shape)
      : group(static_cast<int>(threadIdx.x) % shape.groups()),
        first(static_cast<int>(threadIdx.x) / shape.groups()),
        step(kScanThreads / shape.groups()) {
    if (first >= step) {  // left over
      first = INT_MAX / 2;
    }
  }
};

/// Copies this thread's pairs from or to memory.
__device__ inline void load_sums(Tile& tile, const std::uint32_t* from, int pairs) {
  for_own_pairs(pairs, [&](int pair) { tile.sum[pair] = from != nullptr ? from[pair] : 0; });
}
__device__ inline void store_sums(const Tile& tile, int pairs, std::uint32_t* to) {
  for_own_pairs(pairs, [&](int pair) { to[pair] = tile.sum[pair]; });
}

/// A gated rotation, and how it is cut into blocks: each has one key head of one row, with the
/// query heads that share it, over some chunks. Where there are rows enough for all multiprocessors
/// a block takes a whole row, so that nothing needs to be known of the chunks before.
struct GatedArgs : RotationArgs {
  TileShape tile;
  int heads;   // key heads
  int length;  // T
  int chunk;
  int chunks;
  int spans;  // blocks a head of a row has: 1 or chunks

  GatedArgs(const Rotation& rotation, const Sequence& seq)
      : RotationArgs(rotation, seq),
        tile(rotation.pairs),
        heads(k.count),
        length(positions.length),
        chunk(static_cast<int>(std::min(rotation.chunk, seq.length))),
        chunks(static_cast<int>(rotation.chunks(seq.length))) {
    constexpr int kEnoughBlocks = 256;
    spans = chunks == 1 || batch * heads >= kEnoughBlocks ? 1 : chunks;
  }

  unsigned blocks(int per_row) const { return static_cast<unsigned>(batch * per_row * heads); }

  __device__ std::int64_t carry_at(int row, int chunk_index, int head_index) const {
    return ((static_cast<std::int64_t>(row) * chunks + chunk_index) * heads + head_index) *
           head.pairs;
  }
  /// Where a head of a token is in [B, T, K]; times P, in [B, T, K, P].
  __device__ std::int64_t gate_at(int row, int token, int head_index) const {
    return (static_cast<std::int64_t>(row) * length + token) * heads + head_index;
  }
  __device__ HeadRow row_of(int row, int head_index) const {
    const std::int32_t* const document_start = positions.document_start;
    return {logits + gate_at(row, 0, head_index),
            document_start == nullptr ? nullptr
                                      : document_start + static_cast<std::int64_t>(row) * length,
            ratios, heads, exponent_start};
  }
  __device__ int chunk_end(int chunk_index) const {
    return chunk_index == chunks - 1 ? length : (chunk_index + 1) * chunk;
  }
  /// Whether the document of a chunk's last token began before the chunk.
  __device__ bool continues(int row, int chunk_index) const {
    const std::int64_t last = static_cast<std::int64_t>(row) * length + chunk_end(chunk_index) - 1;
    return positions.document_start == nullptr ||
           positions.document_start[last] < chunk_index * chunk;
  }
};

/// What a block works on, of `per_row` for each key head of a row.
struct Place {
  int row, part, head;

  __device__ Place(const GatedArgs& args, int per_row)
      : row(static_cast<int>(blockIdx.x) / args.heads / per_row),
        part(static_cast<int>(blockIdx.x) / args.heads % per_row),
        head(static_cast<int>(blockIdx.x) % args.heads) {}
};

}  // namespace carope::cuda
