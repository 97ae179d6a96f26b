#include "ops/rotation/gated_scan.cuh"

// dz(t) = -f σ(z) Σ_p e r_p f^e G_p(t) with e = p + exponent_start and the ratio r_p, where G_p(t)
// sums the gradients of pair p's phase from token t to the end of its document. Sums over runs of
// tokens are fp32, sums of those fp64.
namespace carope::cuda {
namespace {

constexpr int kThreads = kScanThreads;

/// Adds the gradients of a group's phases, which need only the rotated values.
template <class Group>
__device__ void add_phase_gradient(const Group& value, const Group& gradient,
                                   float (&sums)[kGroup]) {
#pragma unroll
  for (int i = 0; i < kGroup; ++i) {
    sums[i] += value.x(i) * gradient.y(i) - value.y(i) * gradient.x(i);
  }
}

/// For each chunk but the first, the phase gradients of its tokens whose document began before it,
/// as the entry of the chunk before.
template <class T, Access kAccess>
__global__ void __launch_bounds__(kThreads)
    sum_later_kernel(const GatedArgs args, const HeadRows dq, const HeadRows dk, double* later) {
  __shared__ double sums[kThreads * kGroup];  // [slots][groups][8]
  const Place place(args, args.chunks - 1);
  const HeadRow head = args.row_of(place.row, place.head);
  const int groups = args.head.groups();
  const int group = static_cast<int>(threadIdx.x) % groups;
  const int slots = kThreads / groups;
  const int slot = static_cast<int>(threadIdx.x) / groups;
  const int begin = (place.part + 1) * args.chunk;
  const int end = args.chunk_end(place.part + 1);
  double sum[kGroup] = {};
  for (int t = slot < slots ? begin + slot : end; t < end; t += slots) {
    if (head.document_start != nullptr && head.document_start[t] >= begin) {
      break;
    }
    float gradient[kGroup] = {};
    // The key head's, then those of the query heads that share it.
#pragma unroll 1
    for (int i = -1; i < args.group; ++i) {
      const bool is_key = i < 0;
      const int number = is_key ? place.head : place.head * args.group + i;
      const T* const value = (is_key ? args.k : args.q).at<const T>(place.row, t, number);
      const T* const dvalue = (is_key ? dk : dq).at<const T>(place.row, t, number);
      add_phase_gradient(Group<T, kAccess>::load(value, args.head, group),
                         Group<T, kAccess>::load(dvalue, args.head, group), gradient);
    }
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      sum[i] += gradient[i];
    }
  }
#pragma unroll
  for (int i = 0; i < kGroup; ++i) {
    sums[threadIdx.x * kGroup + i] = sum[i];
  }
  __syncthreads();
  double* result = later + args.carry_at(place.row, place.part, place.head);
  for (int pair = static_cast<int>(threadIdx.x); pair < args.head.pairs; pair += kThreads) {
    double total = 0.0;
    for (int other = 0; other < slots; ++other) {
      total += sums[other * groups * kGroup + pair];
    }
    result[pair] = total;
  }
}

/// Adds up the sums of later chunks, one thread a row, head and pair.
__global__ void __launch_bounds__(kThreads) join_later_kernel(const GatedArgs args, double* later) {
  const std::int64_t per_row = args.heads * args.head.pairs;
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= args.batch * per_row) {
    return;
  }
  const auto row = static_cast<int>(i / per_row);
  double* entry = later + args.carry_at(row, args.chunks - 1, 0) + i % per_row;
  double sum = 0.0;
  *entry = sum;
  for (int chunk = args.chunks - 2; chunk >= 0; --chunk) {
    entry -= per_row;
    sum = *entry + (args.continues(row, chunk + 1) ? sum : 0.0);
    *entry = sum;
  }
}

/// What the backward pass keeps in shared memory besides the tile.
struct GradientTile {
  // [runs][row]: the sum of what follows each run in the document of its last token, as the sum of
  // two floats. First of all `high` holds the sums that runs pass on to the run before.
  float high[kTileTokens / kRun * kChains * kGroup];
  float low[kTileTokens / kRun * kChains * kGroup];
  double later[kMaxRotaryPairs];  // what follows the tile, then what follows its begin
  float gate[kTileTokens];        // [tokens][quads]: Σ e f^e G over the pairs of a quad of groups
};

struct BackwardArgs {
  HeadRows dq, dk;         // of the rotated, then of the unrotated
  float* dlogits;          // [B, T, K]
  const double* later;     // [B, chunks, K, P]: what follows each chunk; or null where a block has
                           // a whole row
  std::uint32_t* at_tile;  // [blocks, tiles of a chunk - 1, P]: the phase before each tile
};

/// A thread's group of a tile's q and k, and of their gradients.
template <class T, Access kAccess>
struct Gradients {
  using Pairs = Group<T, kAccess>;
  const GatedArgs& args;
  const BackwardArgs& tensors;
  int row, first;  // token of the tile
  int query, key;  // heads: the first of the queries that share the key
  int count;       // tokens
  Slot slot;

  __device__ const T* query_at(int t) const { return args.q.at<const T>(row, first + t, query); }
  __device__ const T* key_at(int t) const { return args.k.at<const T>(row, first + t, key); }
  __device__ T* dquery_at(int t) const { return tensors.dq.at<T>(row, first + t, query); }
  __device__ T* dkey_at(int t) const { return tensors.dk.at<T>(row, first + t, key); }

  __device__ void prefetch(int t) const {
    if (t < count) {
      Pairs::prefetch(query_at(t), args.head, slot.group);
      Pairs::prefetch(dquery_at(t), args.head, slot.group);
      Pairs::prefetch(key_at(t), args.head, slot.group);
      Pairs::prefetch(dkey_at(t), args.head, slot.group);
    }
  }

  /// Rotates the gradients back, and leaves those of the phases in the places of the phases.
  __device__ void rotate_back(Tile& tile) const {
    for (int t = slot.first; t < count; t += slot.step) {
      prefetch(t + slot.step);
      const auto q = Pairs::load(query_at(t), args.head, slot.group);
      const auto k = Pairs::load(key_at(t), args.head, slot.group);
      auto dq = Pairs::load(dquery_at(t), args.head, slot.group);
      auto dk = Pairs::load(dkey_at(t), args.head, slot.group);
      float gradient[kGroup] = {};
      add_phase_gradient(q, dq, gradient);
      add_phase_gradient(k, dk, gradient);
      std::uint32_t phase[kGroup];
      phases_of(tile, args.tile, t, slot.group, phase);
      const auto rotation = GroupRotation::by<T>(phase, Direction::kBackward, args.magnitude);
      rotation.apply(dq);
      rotation.apply(dk);
      dq.store(dquery_at(t), args.head, slot.group);
      dk.store(dkey_at(t), args.head, slot.group);
#pragma unroll 1
      for (int i = 1; i < args.group; ++i) {
        T* const head = dquery_at(t) + i * tensors.dq.head_stride;
        const auto other = Pairs::load(query_at(t) + i * args.q.head_stride, args.head, slot.group);
        auto dother = Pairs::load(head, args.head, slot.group);
        add_phase_gradient(other, dother, gradient);
        rotation.apply(dother);
        dother.store(head, args.head, slot.group);
      }
      std::uint32_t* place = tile.phase + args.tile.group_at(t, slot.group);
#pragma unroll
      for (int half = 0; half < kGroup; half += 4) {
        Vec<std::uint32_t, 4> words;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          words.at[i] = __float_as_uint(gradient[half + i]);
        }
        words.store(place + TileShape::lane_at(t, half));
      }
    }
  }
};

__device__ float phase_gradient(const Tile& tile, const TileShape& shape, const Worker& worker,
                                int token, int chain) {
  return __uint_as_float(tile.phase[shape.word_at(token, worker.group(chain), worker.lane)]);
}

/// Sums what each run passes on to the run before.
__device__ void sum_runs(const Tile& tile, GradientTile& gradients, const TileShape& shape,
                         int count) {
  const Worker worker(shape);
  const int end = worker.end(shape, count);
  if (worker.first() >= end) {
    return;
  }
  float sum[kChains] = {};
  for (int t = worker.first(); t < end && tile.continues(t); ++t) {
#pragma unroll
    for (int chain = 0; chain < kChains; ++chain) {
      sum[chain] += phase_gradient(tile, shape, worker, t, chain);
    }
  }
#pragma unroll
  for (int chain = 0; chain < kChains; ++chain) {
    gradients.high[worker.run * shape.row + worker.pair(chain)] = sum[chain];
  }
}

/// Sums the runs from the last one on.
__device__ void join_runs_backward(const Tile& tile, GradientTile& gradients,
                                   const TileShape& shape, int count) {
  for_own_pairs(shape.pairs, [&](int pair) {
    double later = gradients.later[pair];
#pragma unroll 4
    for (int run = (count - 1) / kRun; run >= 0; --run) {
      const int at = run * shape.row + pair;
      const double sum = gradients.high[at];
      const auto high = static_cast<float>(later);
      gradients.high[at] = high;
      gradients.low[at] = static_cast<float>(later - high);
      const int last = min((run + 1) * kRun, count) - 1;
      later = sum + (tile.continues(last) ? later : 0.0);
    }
    gradients.later[pair] = later;
  });
}

/// Sums e f^e G over the pairs of each quad, for every token.
__device__ void sum_pairs(const Tile& tile, GradientTile& gradients, const TileShape& shape,
                          const HeadRow& head, int count) {
  const Worker worker(shape);
  const int end = worker.end(shape, count);
  if (worker.first() >= end) {
    return;
  }
  float high[kChains];
  float low[kChains];
#pragma unroll
  for (int chain = 0; chain < kChains; ++chain) {
    const int at = worker.run * shape.row + worker.pair(chain);
    high[chain] = gradients.high[at];
    low[chain] = gradients.low[at];
  }
  float sum[kChains] = {};  // within the run
  for (int t = end - 1; t >= worker.first(); --t) {
    Powers powers(tile.frequency[t], worker.lane, head.exponent_start);
    powers.skip(kChains * worker.quad);
    auto power = static_cast<float>(powers.value);
    const auto stride = static_cast<float>(powers.stride);
    float total = 0.0F;
#pragma unroll
    for (int chain = 0; chain < kChains; ++chain) {
      sum[chain] += phase_gradient(tile, shape, worker, t, chain);
      const float gradient = high[chain] + (low[chain] + sum[chain]);
      const auto exponent = static_cast<float>(worker.pair(chain) + head.exponent_start) *
                            static_cast<float>(head.ratio(worker.pair(chain), shape.pairs));
      // Past the last pair there are no gradients, only what the memory held.
      total += worker.pair(chain) < shape.pairs ? exponent * power * gradient : 0.0F;
      power *= stride;
    }
    const unsigned lanes = 0xFFU << (threadIdx.x % kWarp / kGroup * kGroup);
#pragma unroll
    for (int step = kGroup / 2; step > 0; step /= 2) {
      total += __shfl_xor_sync(lanes, total, step);
    }
    if (worker.lane == 0) {
      gradients.gate[t * shape.quads + worker.quad] = total;
    }
    if (tile.start[t] == t) {
#pragma unroll
      for (int chain = 0; chain < kChains; ++chain) {
        sum[chain] = high[chain] = low[chain] = 0.0F;
      }
    }
  }
}

__device__ void store_gates(const Tile& tile, const GradientTile& gradients, const TileShape& shape,
                            int heads, int count, float* dlogits) {
  const int t = static_cast<int>(threadIdx.x);
  if (t < count) {
    float total = 0.0F;
    for (int quad = 0; quad < shape.quads; ++quad) {
      total += gradients.gate[t * shape.quads + quad];
    }
    dlogits[static_cast<std::int64_t>(t) * heads] = -tile.gate[t] * total;
  }
}

/// Goes through a span from its end to its begin, tile by tile. Phases go the other way: within
/// each chunk a first pass notes the phase before each tile.
template <class T, Access kAccess>
__global__ void __launch_bounds__(kThreads, sizeof(T) == 2 && kAccess != Access::kAny ? 6 : 3)
    backward_kernel(const GatedArgs args, const BackwardArgs tensors) {
  __shared__ Tile tile;
  __shared__ GradientTile gradients;
  const Place place(args, args.spans);
  const HeadRow head = args.row_of(place.row, place.head);
  const TileShape& shape = args.tile;
  const int pairs = shape.pairs;
  std::uint32_t* at_tile = tensors.at_tile + static_cast<std::int64_t>(blockIdx.x) *
                                                 (shape.tiles(args.chunk) - 1) * pairs;
  const double* later = tensors.later == nullptr
                            ? nullptr
                            : tensors.later + args.carry_at(place.row, place.part, place.head);
  for_own_pairs(pairs,
                [&](int pair) { gradients.later[pair] = later == nullptr ? 0.0 : later[pair]; });
  for (int chunk = args.spans == 1 ? args.chunks - 1 : place.part; chunk >= place.part; --chunk) {
    const int begin = chunk * args.chunk;
    const int end = args.chunk_end(chunk);
    const int tiles = shape.tiles(end - begin);
    load_sums(tile, args.carry + args.carry_at(place.row, chunk, place.head), pairs);
    for (int i = 0; i < tiles - 1; ++i) {
      store_sums(tile, pairs, at_tile + static_cast<std::int64_t>(i) * pairs);
      __syncthreads();  // others may still read the tile before
      scan_tile<Keep::kLogit>(tile, shape, head, begin + i * shape.tokens, shape.tokens);
    }
    for (int i = tiles - 1; i >= 0; --i) {
      if (i < tiles - 1) {
        load_sums(tile, at_tile + static_cast<std::int64_t>(i) * pairs, pairs);
      }
      const int first = begin + i * shape.tokens;
      const int count = min(shape.tokens, end - first);
      const Gradients<T, kAccess> values{
          args,       tensors, place.row,      first, place.head * args.group,
          place.head, count,   Slot(args.head)};
      values.prefetch(values.slot.first);  // they come while phases are computed
      __syncthreads();
      scan_tile<Keep::kSlope>(tile, shape, head, first, count);
      values.rotate_back(tile);
      __syncthreads();
      sum_runs(tile, gradients, shape, count);
      __syncthreads();
      join_runs_backward(tile, gradients, shape, count);
      __syncthreads();
      sum_pairs(tile, gradients, shape, head, count);
      __syncthreads();
      store_gates(tile, gradients, shape, args.heads, count,
                  tensors.dlogits + args.gate_at(place.row, first, place.head));
    }
  }
}

}  // namespace

void rotate_gated_backward(Context& ctx, const Rotation& rotation, const Sequence& seq,
                           const RotationGradients& gradients) {
  const GatedArgs args(rotation, seq);
  const cudaStream_t stream = stream_of(ctx);
  const std::int64_t sums = seq.batch * rotation.k.count * rotation.pairs;
  const std::int64_t later_words = args.spans > 1 ? 2 * sums * args.chunks : 0;  // of fp64
  const std::int64_t tile_words = sums * args.spans * (args.tile.tiles(args.chunk) - 1);
  std::uint32_t* scratch =
      later_words + tile_words > 0
          ? ctx.scratch({{later_words + tile_words}, DType::kU32}).data<std::uint32_t>()
          : nullptr;
  double* later = later_words > 0 ? reinterpret_cast<double*>(scratch) : nullptr;
  const BackwardArgs tensors{.dq = gradients.dq,
                             .dk = gradients.dk,
                             .dlogits = gradients.dlogits.f32(),
                             .later = later,
                             .at_tile = scratch + later_words};
  const auto all = {rotation.q, rotation.k, gradients.dq, gradients.dk};
  visit_groups(all, args.head, [&](auto zero, auto access) {
    using T = decltype(zero);
    if (later != nullptr) {
      sum_later_kernel<T, access.value><<<args.blocks(args.chunks - 1), kThreads, 0, stream>>>(
          args, tensors.dq, tensors.dk, later);
      CUDA_CHECK_LAUNCH();
      const auto blocks = static_cast<unsigned>(ceil_div<std::int64_t>(sums, kThreads));
      join_later_kernel<<<blocks, kThreads, 0, stream>>>(args, later);
      CUDA_CHECK_LAUNCH();
    }
    backward_kernel<T, access.value>
        <<<args.blocks(args.spans), kThreads, 0, stream>>>(args, tensors);
    CUDA_CHECK_LAUNCH();
  });
}

}  // namespace carope::cuda
