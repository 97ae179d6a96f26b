#include "ops/cuda/early_start.cuh"
#include "ops/rotation/gated_scan.cuh"

namespace carope::cuda {
namespace {

constexpr int kThreads = kScanThreads;

/// Blocks that are to fit on a multiprocessor: as many as registers allow without spilling, or as
/// shared memory allows.
template <class T, Access kAccess>
constexpr int kRotateBlocks = kAccess != Access::kAny && sizeof(T) == 2 ? 6 : 3;

/// Puts the sum of each chunk's increments, from the last document's begin in it, into the carry of
/// the next chunk.
__global__ void __launch_bounds__(kThreads) sum_chunks_kernel(const GatedArgs args) {
  __shared__ Tile tile;
  const Place place(args, args.chunks - 1);
  const HeadRow head = args.row_of(place.row, place.head);
  load_sums(tile, nullptr, args.head.pairs);
  const int end = args.chunk_end(place.part);
  for (int begin = place.part * args.chunk; begin < end; begin += args.tile.tokens) {
    scan_tile<Keep::kLogit>(tile, args.tile, head, begin, min(args.tile.tokens, end - begin));
  }
  store_sums(tile, args.head.pairs,
             args.carry + args.carry_at(place.row, place.part + 1, place.head));
}

/// Adds up the sums of chunks, one thread a row, head and pair.
__global__ void __launch_bounds__(kThreads) join_chunks_kernel(const GatedArgs args) {
  const std::int64_t per_row = args.heads * args.head.pairs;
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= args.batch * per_row) {
    return;
  }
  const auto row = static_cast<int>(i / per_row);
  std::uint32_t* carry = args.carry + args.carry_at(row, 0, 0) + i % per_row;
  std::uint32_t phase = args.state == nullptr ? 0 : args.state[i];
  *carry = phase;
  for (int chunk = 1; chunk < args.chunks; ++chunk) {
    carry += per_row;
    phase = *carry + (args.continues(row, chunk - 1) ? phase : 0);
    *carry = phase;
  }
}

/// Stores a group's phases, rounded to 2^-16 turns; those at `pairs` and past it do not exist.
template <Access kAccess>
__device__ void store_rounded(const std::uint32_t (&phase)[kGroup], int pairs, std::uint16_t* to) {
  Vec<std::uint16_t, kGroup> rounded;
#pragma unroll
  for (int i = 0; i < kGroup; ++i) {
    rounded.at[i] = static_cast<std::uint16_t>((phase[i] + 0x8000U) >> 16);
    if (kAccess == Access::kAny && i < pairs) {
      to[i] = rounded.at[i];
    }
  }
  if (kAccess != Access::kAny) {
    rounded.store(to);
  }
}

/// A thread's group of a tile's q and k.
template <class T, Access kAccess>
struct QueryKey {
  using Pairs = Group<T, kAccess>;
  const GatedArgs& args;
  T* query;               // of the tile's first token, and the first head that shares the key's
  T* key;                 // likewise
  std::uint16_t* phases;  // likewise, or null
  int count;              // tokens
  Slot slot;

  __device__ T* query_at(int t) const { return query + t * args.q.token_stride; }
  __device__ T* key_at(int t) const { return key + t * args.k.token_stride; }

  __device__ void prefetch(int t) const {
    if (t < count) {
      Pairs::prefetch(query_at(t), args.head, slot.group);
      Pairs::prefetch(key_at(t), args.head, slot.group);
    }
  }

  __device__ void rotate(const Tile& tile) const {
    for (int t = slot.first; t < count; t += slot.step) {
      prefetch(t + slot.step);
      T* q_head = query_at(t);
      T* k_head = key_at(t);
      auto q = Pairs::load(q_head, args.head, slot.group);
      auto k = Pairs::load(k_head, args.head, slot.group);
      std::uint32_t phase[kGroup];
      phases_of(tile, args.tile, t, slot.group, phase);
      if (phases != nullptr) {
        store(phase, t);
      }
      const auto rotation = GroupRotation::by<T>(phase, Direction::kForward, args.magnitude);
      rotation.apply(q);
      rotation.apply(k);
      q.store(q_head, args.head, slot.group);
      k.store(k_head, args.head, slot.group);
#pragma unroll 1
      for (int i = 1; i < args.group; ++i) {
        T* const head = q_head + i * args.q.head_stride;
        auto other = Pairs::load(head, args.head, slot.group);
        rotation.apply(other);
        other.store(head, args.head, slot.group);
      }
      pass_on_nan(tile, t);
    }
  }

 private:
  __device__ void store(const std::uint32_t (&phase)[kGroup], int t) const {
    const int first = slot.group * kGroup;
    store_rounded<kAccess>(phase, args.head.pairs - first,
                           phases + args.gate_at(0, t, 0) * args.head.pairs + first);
  }

  /// A phase in turns cannot be NaN, so a NaN logit is put into the query: it must reach the loss.
  __device__ void pass_on_nan(const Tile& tile, int t) const {
    if (slot.group == 0 && isnan(tile.gate[t])) {
      *query_at(t) = from_float<T>(tile.gate[t]);
    }
  }
};

/// Rotates q and k of one head over a span. Where that is the whole row it begins at `state`, or at
/// zero, and leaves the carries; otherwise it begins at the carry of its chunk.
template <class T, Access kAccess>
__global__ void __launch_bounds__(kThreads, kRotateBlocks<T, kAccess>)
    rotate_gated_kernel(const GatedArgs args) {
  __shared__ Tile tile;
  let_next_begin();
  wait_for_previous();
  const Place place(args, args.spans);
  const HeadRow head = args.row_of(place.row, place.head);
  const int pairs = args.head.pairs;
  const bool whole = args.spans == 1;
  std::uint32_t* const state =
      args.state == nullptr
          ? nullptr
          : args.state + (static_cast<std::int64_t>(place.row) * args.heads + place.head) * pairs;
  load_sums(tile, whole ? state : args.carry + args.carry_at(place.row, place.part, place.head),
            pairs);
  const int last = whole ? args.chunks - 1 : place.part;
  for (int chunk = place.part; chunk <= last; ++chunk) {
    if (whole) {
      store_sums(tile, pairs, args.carry + args.carry_at(place.row, chunk, place.head));
    }
    const int end = args.chunk_end(chunk);
    for (int begin = chunk * args.chunk; begin < end; begin += args.tile.tokens) {
      const int count = min(args.tile.tokens, end - begin);
      const QueryKey<T, kAccess> values{
          args,
          args.q.at<T>(place.row, begin, place.head * args.group),
          args.k.at<T>(place.row, begin, place.head),
          args.phases == nullptr ? nullptr
                                 : args.phases + args.gate_at(place.row, begin, place.head) * pairs,
          count,
          Slot(args.head)};
      values.prefetch(values.slot.first);  // they come while phases are computed
      __syncthreads();                     // others may still be reading the tile before
      scan_tile<Keep::kLogit>(tile, args.tile, head, begin, count);
      values.rotate(tile);
    }
  }
  if (state != nullptr && last == args.chunks - 1) {
    store_sums(tile, pairs, state);
  }
}

}  // namespace

void rotate_gated(Context& ctx, const Rotation& rotation, const Sequence& seq) {
  const GatedArgs args(rotation, seq);
  check<ShapeError>(aligned16(args.phases), "the phases must begin at a multiple of 16 bytes");
  if (args.spans > 1) {
    sum_chunks_kernel<<<args.blocks(args.chunks - 1), kThreads, 0, stream_of(ctx)>>>(args);
    CUDA_CHECK_LAUNCH();
    const std::int64_t sums = seq.batch * rotation.k.count * rotation.pairs;
    const auto blocks = static_cast<unsigned>(ceil_div<std::int64_t>(sums, kThreads));
    join_chunks_kernel<<<blocks, kThreads, 0, stream_of(ctx)>>>(args);
    CUDA_CHECK_LAUNCH();
  }
  visit_groups({rotation.q, rotation.k}, args.head, [&](auto zero, auto access) {
    using T = decltype(zero);
    launch_early(ctx, rotate_gated_kernel<T, access.value>, dim3(args.blocks(args.spans)), kThreads,
                 args);
  });
}

}  // namespace carope::cuda
