#include "ops/attention/attention_hopper_copier.cuh"
#include "ops/attention/attention_tiled.h"
#include "ops/cuda/shares_cuda.h"

// The backward pass of causal attention over short sequences, on Hopper. A block takes whole heads,
// one after another, and loops over blocks of keys and, inside, over the tiles of queries that see
// them. Each of its two warpgroups owns the gradients of half of the keys, in registers; scores are
// transposed (rows are keys), so that probabilities and score gradients are left factors without
// leaving the registers. Only dq needs both halves: score gradients meet in shared memory, and the
// groups take turns in adding a tile's dq, which waits in shared memory between blocks of keys.
// Queries come from the last tile to the one that has the group's own keys: then all gradients of
// its tokens are complete, and go on together through the rotation that these had.
// A third group brings the tiles. All sums have a fixed order.
namespace carope::cuda::tiled {
namespace {

/// The tile that has a group's keys, whose gradients are complete together.
struct OwnTile {
  int group, head, tile;
  bool first;               // of those that the group has of the head
  const GroupFactor& keys;  // rotated
  std::uint32_t queries;    // likewise, in shared memory
  SharedBarrier queries_free;
  std::byte* torque;  // where it is to be left: nobody reads the keys there any more
  SharedBarrier torque_there;
};

/// Takes the gradients of a group's own tile through what was before attention, and stores them.
template <class Way>
__device__ void finish(const Problem<bf16>& p, const Gradients<bf16>& g, SharedMemory& shared,
                       const OwnTile& own, LaneTurns<Way>& turns, GroupSums& dq, GroupSums& dk,
                       const GroupSums& dv) {
  const auto place_in = [&](const Rows<bf16>& rows) {
    return tile_of(rows, p, own.head, own.tile);
  };
  if constexpr (Way::kGoesOn) {
    const int thread = read_thread();
    WarpStage* const staged = shared.staged + own.group * kConsumerWarps / kGroups;
    void* const rows = staged[thread / 32].rows;
    const auto store = [&](const GroupSums& sums, Part part, const Rows<bf16>& to) {
      store_and_sum(sums, rows, staged, part, own.first, place_in(to), to.row_stride);
    };
    scale_by(dq, p.scale);
    scale_by(dk, p.scale);
    if constexpr (Way::kGate) {
      const auto query = [&](int step) {
        return Rows64{own.queries}.load(thread / 32 * 16, step, thread % 32);
      };
      const auto key = [&](int step) { return own.keys[step]; };
      wait_at<kGroupThreads>(within(own.group));  // all its warps are done with the keys, too
      leave_torque<Way::kLayout>(query, dq, key, dk, own.torque);
      own.torque_there.arrive();
    }
    own.queries_free.arrive();
    store(dv, kValue, g.dv);
    turns.prepare(rows);
    turns.undo(dq);
    store(dq, kQuery, g.dq);
    turns.undo(dk);
    store(dk, kKey, g.dk);
  } else {
    own.queries_free.arrive();
    store_tile(dq, p.scale, place_in(g.dq), g.dq.row_stride);
    store_tile(dk, p.scale, place_in(g.dk), g.dk.row_stride);
    store_tile(dv, 1.0F, place_in(g.dv), g.dv.row_stride);
  }
}

/// A warpgroup's part: the keys it owns, and dq of every other tile.
template <class Way>
__device__ void consume(const Problem<bf16>& p, const Gradients<bf16>& g,
                        const RotationArgs& rotation, const RotationOutputs& outputs,
                        SharedMemory& shared, int group) {
  const int warp = threadIdx.x % kGroupThreads / kWarp;
  const int lane = threadIdx.x % kWarp;
  const int tiles = p.queries / kTile;
  const int heads = p.batch * p.heads;
  const float scale_log2 = p.scale * kLog2E;
  const int first_column = lane % 4 * 2;
  const Rows64 own_gradients{shared_address(shared.score_gradients[group])};

  if (group == 0) {
    pass_by<kConsumers>(read_by(0));  // so that the first tile's score gradients may be written
  }
  int n = 0;
  int blocks = 0;
  for (int head = blockIdx.x; head < heads; head += gridDim.x) {
    for (int block = 0; kGroups * block < tiles; ++block, ++blocks) {
      auto& keys = shared.keys[blocks % 2];
      const int own = kGroups * block + group;  // the tile that has the group's keys
      GroupFactor k, v;
      barrier_at(shared.filled[n % kStages]).wait(n / kStages);
      load_left_factor(k, Rows64{shared_address(keys[group])});
      load_left_factor(v, Rows64{shared_address(shared.values[group])});
      barrier_at(shared.values_free).arrive();

      GroupSums dk = {}, dv = {}, s;
      const auto start_scores = [&](int stage) {
        begin_products();
        start_product<false>(
            s, k, SharedFactor::along_result(shared_address(shared.queries[stage])), false);
        close_products();
      };
      // From the scores of a tile to those of its gradients that the group has alone, and to score
      // gradients in shared memory.
      const auto take_scores = [&](int stage, bool adds_dq, bool is_own) {
        const std::uint32_t queries = shared_address(shared.queries[stage]);
        const std::uint32_t douts = shared_address(shared.douts[stage]);
        GroupSums dp;
        begin_products();
        start_product<false>(dp, v, SharedFactor::along_result(douts), false);
        close_products();
        if (is_own) {
          for_each_sum([&](int n, int half, int i) {
            if (16 * warp + 8 * half + lane / 4 > 8 * n + first_column + i) {
              s[4 * n + 2 * half + i] = kNegativeInfinity;
            }
          });
        }
        for_each_sum([&](int n, int half, int i) {
          float& x = s[4 * n + 2 * half + i];
          x = fast_exp2(x * scale_log2 - shared.logsumexp[stage][8 * n + first_column + i]);
        });
        GroupFactor probabilities;
        as_left_factor(probabilities, s);
        begin_products();
        start_product<true>(dv, probabilities, SharedFactor::along_sum(douts), true);
        close_products();
        wait_for_products<1>();
        settle(dp);
        for_each_sum([&](int n, int half, int i) {
          float& x = dp[4 * n + 2 * half + i];
          x = s[4 * n + 2 * half + i] * (x - shared.delta[stage][8 * n + first_column + i]);
        });
        GroupFactor gradients;
        as_left_factor(gradients, dp);
        begin_products();
        start_product<true>(dk, gradients, SharedFactor::along_sum(queries), true);
        close_products();

        // All warps that read the score gradients of the tile before must be done with them.
        if (adds_dq) {
          wait_at<kConsumers>(read_by(1 - group));
        } else {
          wait_at<kGroupThreads>(within(group));
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          store_fragment(own_gradients.at(16 * warp + lane % 16, 2 * i + lane / 16), gradients[i]);
        }
        publish_to_products();
      };
      const auto start_dq = [&](GroupSums& dq, int part) {
        start_product<true, true>(
            dq, SharedFactor::along_sum(shared_address(shared.score_gradients[part])),
            SharedFactor::along_sum(shared_address(keys[part])), part > 0);
      };
      const auto kept_at = [&](int tile) {
        return shared.query_gradients[tile - kGroups] + 8 * kWarp * warp + lane;
      };
      start_scores(n % kStages);
      wait_for_products<0>();
      settle(s);
      for (int tile = tiles - 1; tile > own; --tile, ++n) {
        const int stage = n % kStages;
        const bool adds_dq = tile % kGroups == group;
        take_scores(stage, adds_dq, false);
        // The next tile's scores are computed while this one's dq is put away.
        const auto start_next_and_wait_for_others = [&] {
          barrier_at(shared.filled[(n + 1) % kStages]).wait((n + 1) / kStages);
          start_scores((n + 1) % kStages);
          wait_for_products<1>();
        };
        if (!adds_dq) {
          pass_by<kConsumers>(written_for(1 - group));
          start_next_and_wait_for_others();
          barrier_at(shared.free[stage]).arrive();
        } else {
          GroupSums dq;
          wait_at<kConsumers>(written_for(group));
          begin_products();
          start_dq(dq, 0);
          start_dq(dq, 1);
          close_products();
          start_next_and_wait_for_others();
          settle(dq);
          pass_by<kConsumers>(read_by(group));
          barrier_at(shared.free[stage]).arrive();
          if (block > 0) {
            add_kept(dq, kept_at(tile));
          }
          keep(dq, kept_at(tile));
        }
        wait_for_products<0>();
        settle(s);
        settle(dk);
        settle(dv);
      }

      const int stage = n % kStages;
      take_scores(stage, true, true);
      GroupSums dq;
      LaneTurns<Way> turns;
      constexpr bool kFromMemory = Way::kTurn == Turn::kPhases;
      if constexpr (kFromMemory) {
        turns.load(rotation, p, head, own);  // they come while dq is computed
      }
      wait_at<kConsumers>(written_for(group));
      if (group == 1) {
        begin_products();
        start_dq(dq, 0);
        start_dq(dq, 1);
        close_products();
      } else {
        begin_products();
        start_dq(dq, 0);
        close_products();
      }
      wait_for_products<0>();
      settle(dq);
      settle(dk);
      settle(dv);
      pass_by<kConsumers>(read_by(group));
      if constexpr (!Way::kGate) {
        barrier_at(shared.keys_free[blocks % 2]).arrive();
      }
      ++n;
      if (group == 1) {  // no query of the last tile sees the group's keys
        pass_by<kConsumers>(written_for(0));
        barrier_at(shared.filled[n % kStages]).wait(n / kStages);  // it must have come to go
        barrier_at(shared.free[n % kStages]).arrive();
        ++n;
      }
      if (block > 0) {
        add_kept(dq, kept_at(own));
      }
      if constexpr (!kFromMemory) {
        turns.load(rotation, p, head, own);
      }
      finish(p, g, shared,
             {group, head, own, block == 0, k, shared_address(shared.queries[stage]),
              barrier_at(shared.free[stage]), keys[group],
              barrier_at(shared.torque_there[blocks % 2][group])},
             turns, dq, dk, dv);
    }
    if (Way::kGoesOn && outputs.column_sums != nullptr) {
      write_shares(p, shared, outputs.column_sums, group, head);
    }
  }
  if (group == 1) {
    wait_at<kConsumers>(read_by(0));
  }
}

/// Elsewhere than on Hopper an empty kernel, which does not take blocks of this size.
template <class Way>
__global__ void __launch_bounds__(kHopper ? kThreads : kWarp, 1)
    all_gradients(const Problem<bf16> p, const Gradients<bf16> g, const RotationArgs rotation,
                  const RotationOutputs outputs, const __grid_constant__ Matrices from) {
  if constexpr (kHopper) {
    extern __shared__ __align__(1024) std::byte memory[];
    SharedMemory& shared = *reinterpret_cast<SharedMemory*>(memory);
    if (threadIdx.x == 0) {
      init_barriers(shared);
      publish_barriers();
    }
    __syncthreads();
    // The same in all lanes, which the compiler must know.
    const int group = __shfl_sync(kAllLanes, threadIdx.x / kGroupThreads, 0);
    if (group < kGroups) {
      take_registers<kConsumerRegisters>();
      consume<Way>(p, g, rotation, outputs, shared, group);
    } else {
      leave_registers<kProducerRegisters>();
      produce<Way>(p, rotation, outputs, from, shared);
    }
  }
}

template <class Way>
void start(Context& ctx, const Problem<bf16>& p, const Gradients<bf16>& g,
           const RotationArgs& rotation, const RotationOutputs& outputs) {
  const auto tiles = [&](const bf16* data, std::int64_t columns) {
    const TensorSpec spec{{static_cast<std::int64_t>(p.batch) * p.queries, columns}, DType::kBF16};
    return tiles_of({const_cast<bf16*>(data), spec, ctx.device()}, kTile);
  };
  const Matrices from{.qkv = tiles(p.q.data, p.q.row_stride),
                      .dout = tiles(g.dout.data, g.dout.row_stride)};
  launch(all_gradients<Way>, std::min(multiprocessors(ctx), p.batch * p.heads), kThreads,
         sizeof(SharedMemory), stream_of(ctx), p, g, rotation, outputs, from);
}

/// Whether the current device has this kernel, and it takes heads of this dimension within one
/// document.
bool serves(std::int64_t dim, std::int64_t length) {
  if (dim != kDim || length == 0 || length % (kGroups * kTile) != 0 || length > kMaxTiles * kTile) {
    return false;
  }
  cudaFuncAttributes compiled{};
  CUDA_CHECK(cudaFuncGetAttributes(&compiled, all_gradients<EndsHere>));
  return compiled.maxThreadsPerBlock >= kThreads;
}

}  // namespace

bool hopper_serves_backward(const Problem<bf16>& p, const Gradients<bf16>& g) {
  return p.offsets == nullptr && p.document_start == nullptr && p.slopes == nullptr &&
         suits_tensor_cores(p, g) && serves(p.dim, p.queries);
}

void hopper_backward(Context& ctx, const Problem<bf16>& p, const Gradients<bf16>& g) {
  start<EndsHere>(ctx, p, g, RotationArgs({}, {}), {});
}

}  // namespace carope::cuda::tiled

namespace carope::cuda {

bool serves_rotate_and_attend(Device device, const RotatingAttention& shape) {
  const CurrentDevice current(device.index);
  const bool turns_whole_heads = shape.rotary_dim == 0 || shape.rotary_dim == shape.head_dim;
  return shape.dtype == DType::kBF16 && shape.heads == shape.key_heads && turns_whole_heads &&
         !shape.documents && !shape.slopes && !shape.ratios &&
         tiled::serves(shape.head_dim, shape.length);
}

void rotate_and_attend_backward(Context& ctx, const Attention& attention, const Sequence& seq,
                                const Rotation& rotation, const AttentionBackward& args,
                                const RotateAndAttendGradients& gradients) {
  using namespace tiled;
  constexpr auto kHalf = RotaryLayout::kHalf;
  constexpr auto kInterleaved = RotaryLayout::kInterleaved;
  const auto problem = problem_of<bf16>(attention, seq, args);
  const auto parts = gradients_of<bf16>(seq, args);
  const RotationArgs turns(rotation, seq);
  check<ShapeError>(suits_tensor_cores(problem, parts) && aligned16(turns.phases),
                    "attention's tensors must begin at multiples of 16 bytes");
  const std::int64_t width = attention.heads * kDim;
  RotationOutputs outputs{.dlogits = data_of<float>(gradients.dlogits)};
  Tensor sums;
  if (gradients.dbias) {
    sums = ctx.scratch({{seq.batch * kGroups, 3, width}});
    outputs.column_sums = sums.f32();
  }
  const bool half = rotation.layout == kHalf;
  const auto kernel = [&] {
    if (rotation.logits) {
      return half ? start<GoesOn<Turn::kPhases, kHalf>>
                  : start<GoesOn<Turn::kPhases, kInterleaved>>;
    }
    if (rotation.increments) {
      return half ? start<GoesOn<Turn::kIncrements, kHalf>>
                  : start<GoesOn<Turn::kIncrements, kInterleaved>>;
    }
    return start<GoesOn<Turn::kNone, kHalf>>;
  }();
  kernel(ctx, problem, parts, turns, outputs);
  if (sums) {
    const Tensor total = gradients.dbias.reshape({3, width});
    const Tensor totals[] = {total.slice_rows(0, 1), total.slice_rows(1, 2),
                             total.slice_rows(2, 3)};
    add_shares(ctx, sums, totals, gradients.write);
  }
}

}  // namespace carope::cuda
