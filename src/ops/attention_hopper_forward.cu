#include "ops/attention_hopper_tiles.cuh"
#include "ops/attention_tiled.h"

// Causal attention over short sequences on Hopper, from q and k as they are before their rotation.
// A block takes whole heads, one after another. One of its three warpgroups brings a head's tiles
// of 64 tokens to shared memory, rotates q and k there, and writes them back to where they came
// from. The other two attend, each for every other tile of queries: keys and values stay in shared
// memory for all queries of the head, and next to them there is room for what the next head begins
// with. While one group takes exponentials, the tensor cores have its last tile's values and the
// other group's scores.
namespace carope::cuda::tiled {
namespace {

constexpr int kSlots = kMaxTiles + 3;  // for tiles of keys and values
constexpr int kAhead = 3;              // tiles that are brought while one is rotated
/// One more, so that a tile can be rotated before the queries of the one before are taken.
constexpr int kQuerySlots = kAhead + 1;
/// Registers of a thread. Those of three groups must not exceed 504 together.
constexpr int kAttendingRegisters = 208;
constexpr int kBringingRegisters = 88;
/// A thread that brings tiles has one of the four groups of eight pairs, of every 32nd row.
constexpr int kPairGroups = kPairs / kGroup;
constexpr int kRowStep = kGroupThreads / kPairGroups;
constexpr int kRowsEach = kTile / kRowStep;
static_assert(kRowStep % 8 == 0);  // so the permutation stays the same

struct alignas(1024) ForwardMemory {
  TileBytes keys[kSlots];
  TileBytes values[kSlots];
  TileBytes queries[kQuerySlots];
  uint4 phases[kQuerySlots][kRowsEach][kGroupThreads];  // where the thread that copies them reads
  std::uint64_t filled[kSlots], free[kSlots], queries_free[kQuerySlots];
};
static_assert(sizeof(ForwardMemory) <= 227 * 1024);  // what Hopper lends a block

/// How q and k are to be rotated, and where to.
struct Turns {
  const std::uint32_t* increments = nullptr;  // [P]
  const std::uint16_t* phases = nullptr;      // [B, T, H, P]
  Rows<bf16> q{}, k{};
};

__device__ void init_barriers(ForwardMemory& shared) {
  constexpr int kGroupWarps = kConsumerWarps / kGroups;
  for (int i = 0; i < kSlots; ++i) {
    barrier_at(shared.filled[i]).init(kGroupThreads);
    barrier_at(shared.free[i]).init(kConsumerWarps);
  }
  for (auto& barrier : shared.queries_free) {
    barrier_at(barrier).init(kGroupWarps);
  }
}

/// Brings tiles and rotates them.
template <Turn kTurn, RotaryLayout kLayout>
class Bringer {
 public:
  __device__ Bringer(const Problem<bf16>& p, const Turns& turns, ForwardMemory& shared)
      : p_(p), turns_(turns), shared_(shared), thread_(threadIdx.x % kGroupThreads) {
    const int row = thread_ / kPairGroups;
    // Eight lanes access shared memory together: two rows, which must meet different banks.
    row_ = kHalf ? row / 8 * 8 + row % 2 * 4 + row % 8 / 2 : row;
    const int group = thread_ % kPairGroups;
    piece_[0] = kHalf ? group : 2 * group;
    piece_[1] = kHalf ? group + kPairGroups : 2 * group + 1;
    if constexpr (kTurn == Turn::kIncrements) {
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        increments_[i] = turns.increments[group * kGroup + i];
      }
    }
  }

  __device__ void run() {
    const int heads = p_.batch * p_.heads;
    const int tiles = p_.queries / kTile;
    const int own_heads = (heads - static_cast<int>(blockIdx.x) - 1) / gridDim.x + 1;
    const int count = own_heads * tiles;
    for (int n = 0; n < count + kAhead; ++n) {
      if (n >= kAhead) {
        wait_for_copies<kAhead - 1>();
        finish(n - kAhead, tiles);
      }
      if (n < count) {
        barrier_at(shared_.queries_free[n % kQuerySlots]).wait(n / kQuerySlots - 1);
        barrier_at(shared_.free[n % kSlots]).wait(n / kSlots - 1);
        start(n, tiles);
      }
      close_copies();
    }
  }

 private:
  static constexpr bool kHalf = kLayout == RotaryLayout::kHalf;
  using Pairs = Group<bf16, kHalf ? Access::kHalf : Access::kInterleaved>;

  /// The block's tiles are numbered through all its heads.
  __device__ static int head_of(int n, int tiles) { return blockIdx.x + n / tiles * gridDim.x; }

  /// Where this thread's piece of its first row is in a tile, in bytes.
  __device__ int offset(int side) const {
    return row_ * Rows64::kRowBytes + (piece_[side] ^ row_ % 8) * static_cast<int>(sizeof(uint4));
  }

  __device__ void start(int n, int tiles) const {
    const int head = head_of(n, tiles);
    const int tile = n % tiles;
    copy(shared_.queries[n % kQuerySlots], p_.q, head, tile);
    copy(shared_.keys[n % kSlots], p_.k, head, tile);
    copy(shared_.values[n % kSlots], p_.v, head, tile);
    if constexpr (kTurn == Turn::kPhases) {
#pragma unroll
      for (int i = 0; i < kRowsEach; ++i) {
        copy_16_bytes(shared_address(&shared_.phases[n % kQuerySlots][i][thread_]),
                      pairs_of(turns_.phases, p_, head, tile * kTile + row_ + i * kRowStep) +
                          thread_ % kPairGroups * kGroup,
                      true);
      }
    }
  }

  __device__ void copy(const TileBytes& to, const Rows<const bf16>& rows, int head,
                       int tile) const {
    const std::uint32_t target = shared_address(to);
    const bf16* source = tile_of(rows, p_, head, tile) + row_ * rows.row_stride;
#pragma unroll
    for (int i = 0; i < kRowsEach; ++i) {
#pragma unroll
      for (int side = 0; side < 2; ++side) {
        copy_16_bytes(target + offset(side) + i * kRowStep * Rows64::kRowBytes,
                      source + i * kRowStep * rows.row_stride + piece_[side] * 8, true);
      }
    }
  }

  /// Rotates a tile that has arrived, of which each thread reads only what it copied, and hands it
  /// on.
  __device__ void finish(int n, int tiles) const {
    if constexpr (kTurn != Turn::kNone) {
      const int head = head_of(n, tiles);
      const int tile = n % tiles;
#pragma unroll
      for (int i = 0; i < kRowsEach; ++i) {
        std::uint32_t phase[kGroup];
        load_phases(phase, n, tile, i);
        const auto rotation = Rotation::by<bf16>(phase, Direction::kForward);
        rotate(shared_.queries[n % kQuerySlots], turns_.q, head, tile, i, rotation);
        rotate(shared_.keys[n % kSlots], turns_.k, head, tile, i, rotation);
      }
    }
    publish_to_products();
    barrier_at(shared_.filled[n % kSlots]).arrive();
  }

  __device__ void load_phases(std::uint32_t (&phase)[kGroup], int n, int tile, int i) const {
    if constexpr (kTurn == Turn::kIncrements) {
      const std::uint32_t steps = tile * kTile + row_ + i * kRowStep + 1;
#pragma unroll
      for (int j = 0; j < kGroup; ++j) {
        phase[j] = steps * increments_[j];
      }
    } else {
      const uint4 eight = shared_.phases[n % kQuerySlots][i][thread_];
      const std::uint32_t two[] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
      for (int j = 0; j < kGroup; ++j) {
        phase[j] = j % 2 == 0 ? two[j / 2] << 16 : two[j / 2] & 0xFFFF0000U;
      }
    }
  }

  __device__ void rotate(TileBytes& bytes, const Rows<bf16>& rows, int head, int tile, int i,
                         const Rotation& rotation) const {
    std::byte* const row = bytes + i * kRowStep * Rows64::kRowBytes;
    auto* const first = reinterpret_cast<bf16*>(row + offset(0));
    auto* const second = reinterpret_cast<bf16*>(row + offset(1));
    Pairs pairs = Pairs::load(first, second);
    rotation.apply(pairs);
    pairs.store(first, second);
    bf16* const to = tile_of(rows, p_, head, tile) + (row_ + i * kRowStep) * rows.row_stride;
    pairs.store(to + piece_[0] * 8, to + piece_[1] * 8);
  }

  const Problem<bf16>& p_;
  const Turns& turns_;
  ForwardMemory& shared_;
  int thread_, row_, piece_[2];
  std::uint32_t increments_[kGroup];
};

/// The softmax of 64 queries over the keys seen so far, as a lane has it of its two rows: against
/// the largest score, and sums of the lane's columns only.
struct GroupSoftmax {
  float max[2] = {kNegativeInfinity, kNegativeInfinity};
  float sum[2] = {0.0F, 0.0F};

  /// Turns scores into exponentials; what came before has to shrink by as much as it says. Every
  /// query sees a key of the first tile, so that the largest score is finite from there on.
  __device__ void take(GroupSums& s, float scale_log2, float (&shrink)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float largest = max[half];
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        largest = fmaxf(largest, fmaxf(s[4 * n + 2 * half], s[4 * n + 2 * half + 1]));
      }
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 2));
      const float shift = largest * scale_log2;
      shrink[half] = fast_exp2(max[half] * scale_log2 - shift);
      max[half] = largest;
      float added = 0.0F;
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        float& a = s[4 * n + 2 * half];
        float& b = s[4 * n + 2 * half + 1];
        a = fast_exp2(a * scale_log2 - shift);
        b = fast_exp2(b * scale_log2 - shift);
        added += a + b;
      }
      sum[half] = sum[half] * shrink[half] + added;
    }
  }

  __device__ void finish() {
#pragma unroll
    for (float& s : sum) {
      s += __shfl_xor_sync(kAllLanes, s, 1);
      s += __shfl_xor_sync(kAllLanes, s, 2);
    }
  }
};

/// Multiplies the lane's two rows.
__device__ void scale_rows(GroupSums& sums, const float (&factor)[2]) {
  for_each_sum([&](int n, int half, int i) { sums[4 * n + 2 * half + i] *= factor[half]; });
}

/// A warpgroup's part of the attention: its tiles of queries, one after another.
class Attender {
 public:
  __device__ Attender(const Problem<bf16>& p, ForwardMemory& shared, int group)
      : p_(p),
        shared_(shared),
        group_(group),
        warp_(threadIdx.x % kGroupThreads / kWarp),
        lane_(threadIdx.x % kWarp) {}

  __device__ void run() {
    const int heads = p_.batch * p_.heads;
    const int tiles = p_.queries / kTile;
    int first = 0;  // of the head's tiles, among all that are brought
    for (int head = blockIdx.x; head < heads; head += gridDim.x, first += tiles) {
      for (int pair = 0; kGroups * pair < tiles; ++pair) {
        // The later tile of a pair sees one more tile of keys: groups have it by turns.
        const int tile = kGroups * pair + (group_ + pair) % kGroups;
        const bool last = kGroups * (pair + 1) == tiles;
        wait_for_tile(first + tile);
        attend(head, first, tile, last);
        if (last && tile + 1 < tiles) {
          wait_for_tile(first + tile + 1);  // it must have come before it can go
          release(shared_.free[(first + tile + 1) % kSlots]);
        }
      }
    }
  }

 private:
  __device__ void wait_for_tile(int n) const {
    barrier_at(shared_.filled[n % kSlots]).wait(n / kSlots);
  }
  __device__ void release(const std::uint64_t& barrier) const {
    __syncwarp();
    if (lane_ == 0) {
      barrier_at(barrier).arrive();
    }
  }

  /// Attends from the queries of a tile, to which all tiles up to it have come. `releases`: whether
  /// these are the group's last queries of the head.
  __device__ void attend(int head, int first, int tile, bool releases) const {
    const float scale_log2 = p_.scale * kLog2E;
    GroupFactor q;
    const int query_slot = (first + tile) % kQuerySlots;
    load_left_factor(q, Rows64{shared_address(shared_.queries[query_slot])});
    release(shared_.queries_free[query_slot]);

    GroupSoftmax softmax;
    GroupFactor probabilities;
    GroupSums out = {}, scores;
    float shrink[2];
    const auto start_scores = [&](int key_tile) {
      const std::uint32_t keys = shared_address(shared_.keys[(first + key_tile) % kSlots]);
      start_product<false>(scores, q, SharedFactor::along_result(keys), false);
      close_products();
    };
    const auto start_adding_values = [&](int key_tile) {
      const std::uint32_t values = shared_address(shared_.values[(first + key_tile) % kSlots]);
      start_product<true>(out, probabilities, SharedFactor::along_sum(values), true);
      close_products();
    };
    const auto take_scores = [&](int key_tile) {
      settle(scores);
      if (key_tile == tile) {
        mask(scores);
      }
      softmax.take(scores, scale_log2, shrink);
    };

    begin_products();
    start_scores(0);
    wait_for_products<0>();
    take_scores(0);
    as_left_factor(probabilities, scores);
    for (int key_tile = 1; key_tile <= tile; ++key_tile) {
      begin_products();
      start_scores(key_tile);
      start_adding_values(key_tile - 1);
      wait_for_products<1>();
      take_scores(key_tile);
      wait_for_products<0>();
      settle(out);
      if (releases) {
        release(shared_.free[(first + key_tile - 1) % kSlots]);
      }
      scale_rows(out, shrink);
      as_left_factor(probabilities, scores);
    }
    begin_products();
    start_adding_values(tile);
    wait_for_products<0>();
    settle(out);
    if (releases) {
      release(shared_.free[(first + tile) % kSlots]);
    }
    store(head, tile, softmax, out);
  }

  /// Hides the keys after each query, in the tile that has both.
  __device__ void mask(GroupSums& scores) const {
    for_each_sum([&](int n, int half, int i) {
      if (8 * n + lane_ % 4 * 2 + i > 16 * warp_ + 8 * half + lane_ / 4) {
        scores[4 * n + 2 * half + i] = kNegativeInfinity;
      }
    });
  }

  __device__ void store(int head, int tile, GroupSoftmax& softmax, GroupSums& out) const {
    softmax.finish();
    scale_rows(out, {1.0F / softmax.sum[0], 1.0F / softmax.sum[1]});
    store_tile(out, 1.0F, tile_of(p_.out, p_, head, tile), p_.out.row_stride);
    if (lane_ % 4 == 0) {
      float* const rows = p_.logsumexp + static_cast<std::int64_t>(head) * p_.queries +
                          tile * kTile + 16 * warp_ + lane_ / 4;
      rows[0] = softmax.max[0] * p_.scale + logf(softmax.sum[0]);
      rows[8] = softmax.max[1] * p_.scale + logf(softmax.sum[1]);
    }
  }

  const Problem<bf16>& p_;
  ForwardMemory& shared_;
  int group_, warp_, lane_;
};

/// Elsewhere than on Hopper an empty kernel, which does not take blocks of this size.
template <Turn kTurn, RotaryLayout kLayout>
__global__ void __launch_bounds__(kHopper ? kThreads : kWarp, 1)
    rotate_and_attend(const Problem<bf16> p, const Turns turns) {
  if constexpr (kHopper) {
    extern __shared__ __align__(1024) std::byte memory[];
    ForwardMemory& shared = *reinterpret_cast<ForwardMemory*>(memory);
    if (threadIdx.x == 0) {
      init_barriers(shared);
    }
    __syncthreads();
    // The same in all lanes, which the compiler must know.
    const int group = __shfl_sync(kAllLanes, threadIdx.x / kGroupThreads, 0);
    if (group < kGroups) {
      take_registers<kAttendingRegisters>();
      Attender(p, shared, group).run();
    } else {
      leave_registers<kBringingRegisters>();
      Bringer<kTurn, kLayout>(p, turns, shared).run();
    }
  }
}

template <Turn kTurn, RotaryLayout kLayout>
void start(Context& ctx, const Problem<bf16>& p, const Turns& turns) {
  launch(rotate_and_attend<kTurn, kLayout>, std::min(multiprocessors(ctx), p.batch * p.heads),
         kThreads, sizeof(ForwardMemory), stream_of(ctx), p, turns);
}

/// Starts the kernel that rotates by what is given.
void start(Context& ctx, const Problem<bf16>& p, RotaryLayout layout, const Turns& turns) {
  constexpr auto kHalf = RotaryLayout::kHalf;
  constexpr auto kInterleaved = RotaryLayout::kInterleaved;
  const bool half = layout == kHalf;
  const auto kernel = [&] {
    if (turns.phases != nullptr) {
      return half ? start<Turn::kPhases, kHalf> : start<Turn::kPhases, kInterleaved>;
    }
    if (turns.increments != nullptr) {
      return half ? start<Turn::kIncrements, kHalf> : start<Turn::kIncrements, kInterleaved>;
    }
    return start<Turn::kNone, kHalf>;
  }();
  kernel(ctx, p, turns);
}

}  // namespace

bool attention_rotates(Context& ctx, const Attention& attention, const Sequence& seq,
                       const Tensor& qkv) {
  return !attention.slopes && !seq.document_start && seq.offset == 0 && aligned16(qkv.raw()) &&
         tiled::attention_goes_through(ctx.device(), qkv.dtype(), qkv.cols() / 3 / attention.heads,
                                       seq.length);
}

bool attention_through(Context& ctx, const Attention& attention, const Sequence& seq,
                       const AttentionInput& input, const Tensor& qkv, const Tensor& out,
                       const Tensor& logsumexp) {
  if (!tiled::attention_rotates(ctx, attention, seq, qkv) || !aligned16(out.raw())) {
    return false;
  }
  Turns turns{.q = part_of<bf16>(seq, qkv, 0), .k = part_of<bf16>(seq, qkv, 1)};
  if (input.increments) {
    turns.increments = input.increments.data<std::uint32_t>();
  }
  if (input.phases) {
    turns.phases = input.phases.data<std::uint16_t>();
  }
  if (!aligned16(turns.phases)) {
    return false;
  }
  auto problem = problem_of<bf16>(attention, seq, qkv, out);
  problem.logsumexp = logsumexp.f32();
  start(ctx, problem, input.layout, turns);
  return true;
}

}  // namespace carope::cuda::tiled
