#pragma once

#include "ops/attention/attention_hopper_gate.cuh"

// The group of threads that brings tiles to a backward pass of attention on Hopper, and, while
// these are on their way, makes gate gradients of what the other groups leave.
namespace carope::cuda::tiled {

/// A copying thread moves one of a row's eight 16-byte pieces, of every 16th row.
inline constexpr int kPieces = 8;
inline constexpr int kCopyStep = kGroupThreads / kPieces;
inline constexpr int kCopies = kTile / kCopyStep;
static_assert(kCopyStep % 8 == 0);  // so the permutation stays the same

__device__ inline void copy_tile(const TileBytes& to, const bf16* from, std::int64_t stride) {
  const int row = threadIdx.x % kGroupThreads / kPieces;
  const int piece = threadIdx.x % kPieces;
  const std::uint32_t target = Rows64{shared_address(to)}.at(row, piece);
  const bf16* source = from + row * stride + piece * 8;
#pragma unroll
  for (int i = 0; i < kCopies; ++i) {
    copy_16_bytes(target + i * kCopyStep * Rows64::kRowBytes, source + i * kCopyStep * stride,
                  true);
  }
}

__device__ inline float dot(const uint4& a, const uint4& b) {
  const std::uint32_t left[4] = {a.x, a.y, a.z, a.w};
  const std::uint32_t right[4] = {b.x, b.y, b.z, b.w};
  float sum = 0.0F;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 l = unpack_bf16(left[i]);
    const float2 r = unpack_bf16(right[i]);
    sum += l.x * r.x + l.y * r.y;
  }
  return sum;
}

/// What a copying thread has in registers of a tile whose other parts are on their way to shared
/// memory: its pieces of out, if the terms have yet to be computed, and its rows' logsumexp. One of
/// the threads that share a row keeps its terms.
struct TileTerms {
  uint4 out[kCopies];
  float logsumexp[kCopies];

  __device__ void load(const Problem<bf16>& p, const Place& at) {
    const int row = threadIdx.x % kGroupThreads / kPieces;
    const int piece = threadIdx.x % kPieces;
    const bf16* rows = tile_of(p.out, p, at.head, at.tile) + row * p.out.row_stride + piece * 8;
    const float* terms =
        p.logsumexp + static_cast<std::int64_t>(at.head) * p.queries + at.tile * kTile + row;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      if (at.block == 0) {
        out[i] = *reinterpret_cast<const uint4*>(rows + i * kCopyStep * p.out.row_stride);
      }
      logsumexp[i] = terms[i * kCopyStep];
    }
  }

  __device__ void finish(SharedMemory& shared, const Place& at, int stage) const {
    const int row = threadIdx.x % kGroupThreads / kPieces;
    const int piece = threadIdx.x % kPieces;
    const std::byte* dout =
        shared.douts[stage] + row * Rows64::kRowBytes + (piece ^ row % 8) * sizeof(uint4);
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      float& kept = shared.all_deltas[at.tile * kTile + row + i * kCopyStep];
      float delta = 0.0F;
      if (at.block == 0) {
        delta =
            dot(out[i], *reinterpret_cast<const uint4*>(dout + i * kCopyStep * Rows64::kRowBytes));
#pragma unroll
        for (int step = 1; step < kPieces; step *= 2) {
          delta += __shfl_xor_sync(kAllLanes, delta, step);
        }
      }
      if (piece == 0) {
        if (at.block == 0) {
          kept = delta;
        }
        shared.delta[stage][row + i * kCopyStep] = kept;
        shared.logsumexp[stage][row + i * kCopyStep] = logsumexp[i] * kLog2E;
      }
    }
  }
};

/// The copying group: starts the copies of a tile, then waits for those of the tile before.
template <class Way>
__device__ void produce(const Problem<bf16>& p, const Gradients<bf16>& g, const Input& input,
                        SharedMemory& shared) {
  const int tiles = p.queries / kTile;
  const int heads = p.batch * p.heads;
  TileTerms terms;
  GateGradients gates(tiles);
  Place now{static_cast<int>(blockIdx.x), 0, tiles - 1};
  Place last{.head = heads};  // none
  int blocks = 0;
  for (int n = 0;; ++n) {
    const bool more = now.head < heads;
    if (more) {
      if (now.tile == tiles - 1) {
        const int own = kGroups * now.block;
        barrier_at(shared.keys_free[blocks % 2]).wait(blocks / 2 - 1);
        barrier_at(shared.values_free).wait(blocks - 1);
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
          copy_tile(shared.keys[blocks % 2][group], tile_of(p.k, p, now.head, own + group),
                    p.k.row_stride);
          copy_tile(shared.values[group], tile_of(p.v, p, now.head, own + group), p.v.row_stride);
        }
        if constexpr (Way::kTurn == Turn::kPhases) {
          static_assert(kGroups * kTile == kGroupThreads);  // a thread for each token
          prefetch_l2(pairs_of(input.phases, p, now.head,
                               own * kTile + static_cast<int>(threadIdx.x) % kGroupThreads));
        }
        ++blocks;
      }
      const int stage = n % kStages;
      barrier_at(shared.free[stage]).wait(n / kStages - 1);
      copy_tile(shared.queries[stage], tile_of(p.q, p, now.head, now.tile), p.q.row_stride);
      copy_tile(shared.douts[stage], tile_of(g.dout, p, now.head, now.tile), g.dout.row_stride);
    }
    close_copies();
    if (last.head < heads) {
      wait_for_copies<1>();
      terms.finish(shared, last, (n - 1) % kStages);
      publish_to_products();
      barrier_at(shared.filled[(n - 1) % kStages]).arrive();
    }
    if (Way::kGate && n == gates.due()) {
      gates.add_block(p, input, shared);
    }
    if (!more && (!Way::kGate || gates.done(p))) {
      return;
    }
    last = now;
    if (more) {
      terms.load(p, now);
      now.advance(tiles);
    }
  }
}

}  // namespace carope::cuda::tiled
