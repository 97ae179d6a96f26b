#include "ops/attention/attention_hopper_bringer.cuh"
#include "ops/attention/attention_tiled.h"

// Causal attention over short sequences on Hopper, from q and k as they are before their rotation.
// A block takes whole heads, one after another. One of its three warpgroups brings a head's tiles
// of 64 tokens to shared memory, rotates q and k there, by phases that it computes where CARoPE's
// gates set them, and writes them back to where they came from. The other two attend, each for
// every other tile of queries: keys and values stay in shared memory for all queries of the head,
// and next to them there is room for what the next head begins with. While one group takes
// exponentials, the tensor cores have its last tile's values and the other group's scores.
namespace carope::cuda::tiled {
namespace {

/// The softmax of 64 queries over the keys seen so far, as a lane has it of its two rows: against
/// about the largest score, and sums of the lane's columns only.
struct GroupSoftmax {
  float max[2] = {kNegativeInfinity, kNegativeInfinity};
  float sum[2] = {0.0F, 0.0F};

  /// Turns scores into exponentials. Returns whether what came before has to shrink first: only
  /// where a score of the warp's is so much larger than all before that its exponential would
  /// exceed 2^kRoom.
  __device__ bool take(GroupSums& s, float scale_log2, float (&shrink)[2]) {
    constexpr float kRoom = 8.0F;
    float largest[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float& m = largest[half];
      m = max[half];
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        m = fmaxf(m, fmaxf(s[4 * n + 2 * half], s[4 * n + 2 * half + 1]));
      }
      m = fmaxf(m, __shfl_xor_sync(kAllLanes, m, 1));
      m = fmaxf(m, __shfl_xor_sync(kAllLanes, m, 2));
    }
    const float growth = fmaxf(largest[0] - max[0], largest[1] - max[1]);
    const bool shrinks = __any_sync(kAllLanes, growth * scale_log2 > kRoom) != 0;
    if (shrinks) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        shrink[half] = fast_exp2((max[half] - largest[half]) * scale_log2);
        sum[half] *= shrink[half];
        max[half] = largest[half];
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float shift = max[half] * scale_log2;
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        float& a = s[4 * n + 2 * half];
        float& b = s[4 * n + 2 * half + 1];
        a = fast_exp2(a * scale_log2 - shift);
        b = fast_exp2(b * scale_log2 - shift);
        sum[half] += a + b;
      }
    }
    return shrinks;
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
  static __device__ void release(const std::uint64_t& barrier) { barrier_at(barrier).arrive(); }

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
      return softmax.take(scores, scale_log2, shrink);
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
      const bool shrinks = take_scores(key_tile);
      wait_for_products<0>();
      settle(out);
      if (releases) {
        release(shared_.free[(first + key_tile - 1) % kSlots]);
      }
      if (shrinks) {
        scale_rows(out, shrink);
      }
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
    rotate_and_attend(const Problem<bf16> p, const RotationArgs rotation) {
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
      Bringer<kTurn, kLayout>(p, rotation, shared).run();
    }
  }
}

template <Turn kTurn, RotaryLayout kLayout>
void start(Context& ctx, const Problem<bf16>& p, const RotationArgs& rotation) {
  launch(rotate_and_attend<kTurn, kLayout>, std::min(multiprocessors(ctx), p.batch * p.heads),
         kThreads, sizeof(ForwardMemory), stream_of(ctx), p, rotation);
}

}  // namespace
}  // namespace carope::cuda::tiled

namespace carope::cuda {

void rotate_and_attend(Context& ctx, const Attention& attention, const Sequence& seq,
                       const Rotation& rotation, const Tensor& qkv, const Tensor& out,
                       const Tensor& logsumexp) {
  using tiled::start;
  using tiled::Turn;
  constexpr auto kHalf = RotaryLayout::kHalf;
  constexpr auto kInterleaved = RotaryLayout::kInterleaved;
  const RotationArgs args(rotation, seq);
  check<ShapeError>(aligned16(qkv.raw(), out.raw(), args.phases),
                    "qkv, its phases and attention's result must begin at multiples of 16 bytes");
  auto problem = tiled::problem_of<bf16>(attention, seq, qkv, out);
  problem.logsumexp = logsumexp.f32();
  const bool half = rotation.layout == kHalf;
  const auto kernel = [&] {
    if (rotation.logits) {
      return half ? start<Turn::kPhases, kHalf> : start<Turn::kPhases, kInterleaved>;
    }
    if (rotation.increments) {
      return half ? start<Turn::kIncrements, kHalf> : start<Turn::kIncrements, kInterleaved>;
    }
    return start<Turn::kNone, kHalf>;
  }();
  kernel(ctx, problem, args);
}

}  // namespace carope::cuda
