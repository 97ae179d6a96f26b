#pragma once

#include "ops/attention/attention_hopper_gate.cuh"

// The group of threads that brings tiles to a backward pass of attention on Hopper, and, while the
// others work on these, makes gate gradients of what they leave. The others wait for it wherever it
// falls behind, so what it does a tile is kept short.
namespace carope::cuda::tiled {

/// A thread of the group. Of a tile it moves one of a row's eight 16-byte pieces, of every 16th
/// row.
class Copier {
 public:
  __device__ Copier(const Problem<bf16>& p, const Gradients<bf16>& g, SharedMemory& shared)
      : p_(p), g_(g), shared_(shared) {}

  /// Turns to a head.
  __device__ void seek(int head) {
    head_ = head;
    row_of_all_ = head / p_.heads * p_.queries + row();
    column_ = head % p_.heads * kDim + piece() * 8;
  }

  /// Starts the copies of the keys and values of a block's groups.
  __device__ void bring_keys(int block, TileBytes (&keys)[kGroups]) const {
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      copy(keys[group], p_.k, kGroups * block + group);
      copy(shared_.values[group], p_.v, kGroups * block + group);
    }
  }

  /// Starts the copies of a tile of queries and what goes with them.
  __device__ void bring(int block, int tile, int stage) {
    copy(shared_.queries[stage], p_.q, tile);
    copy(shared_.douts[stage], g_.dout, tile);
    close_copies();
    tile_ = tile;
    has_out_ = block == 0;
    // What is loaded under a condition gets a value in any case: the one before would occupy
    // registers all the time.
    const bf16* const from = first_piece(p_.out, tile);
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const auto* piece = reinterpret_cast<const uint4*>(from + i * kCopyStep * p_.out.row_stride);
      out_[i] = has_out_ ? *piece : uint4{};
    }
    const std::int64_t row = static_cast<std::int64_t>(head_) * p_.queries + tile * kTile;
    logsumexp_ = piece() < kCopies ? p_.logsumexp[row + own_row()] : 0.0F;
  }

  /// Waits until the tile has come, and hands it over.
  __device__ void hand_over(int stage) const {
    wait_for_copies<0>();
    float delta = 0.0F;
    if (has_out_) {
      delta = own_delta(shared_.douts[stage]);
    }
    if (piece() < kCopies) {
      float& kept = shared_.all_deltas[tile_ * kTile + own_row()];
      if (has_out_) {
        kept = delta;
      }
      shared_.delta[stage][own_row()] = kept;
      shared_.logsumexp[stage][own_row()] = logsumexp_ * kLog2E;
    }
    publish_to_products();
    barrier_at(shared_.filled[stage]).arrive();
  }

 private:
  static constexpr int kPieces = 8;
  static constexpr int kCopyStep = kGroupThreads / kPieces;
  static constexpr int kCopies = kTile / kCopyStep;
  static_assert(kCopyStep % 8 == 0);  // so the permutation stays the same
  static_assert(kCopies == 4);

  static __device__ int row() { return read_thread() / kPieces; }
  static __device__ int piece() { return read_thread() % kPieces; }
  /// The row whose terms the thread keeps, one of those that it has a piece of; the latter half of
  /// the threads with a row's pieces have none.
  static __device__ int own_row() { return row() + kCopyStep * piece(); }
  /// From the beginning of a tile in shared memory to the thread's first piece.
  static __device__ std::uint32_t offset() { return Rows64{0}.at(row(), piece()); }

  /// The thread's first piece of a tile, in a tensor whose batch rows follow on each other.
  template <class T>
  __device__ T* first_piece(const Rows<T>& rows, int tile) const {
    return rows.data + (row_of_all_ + tile * kTile) * rows.row_stride + column_;
  }

  __device__ void copy(const TileBytes& to, const Rows<const bf16>& rows, int tile) const {
    const std::uint32_t target = shared_address(to) + offset();
    const bf16* const from = first_piece(rows, tile);
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      copy_16_bytes(target + i * kCopyStep * Rows64::kRowBytes,
                    from + i * kCopyStep * rows.row_stride, true);
    }
  }

  /// Σ_d out · dout of the thread's own row, from the pieces that eight threads have of it.
  __device__ float own_delta(const TileBytes& douts) const {
    float sums[kCopies];
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const std::byte* const dout = douts + offset() + i * kCopyStep * Rows64::kRowBytes;
      sums[i] = dot(out_[i], *reinterpret_cast<const uint4*>(dout));
    }
    // Threads share the rows by halves.
    const auto add = [&](float own, float other, int step) {
      return own + __shfl_xor_sync(kAllLanes, other, step);
    };
    const bool odd = piece() % 2 != 0;
    const bool upper = piece() / 2 % 2 != 0;
    const float first = add(odd ? sums[1] : sums[0], odd ? sums[0] : sums[1], 1);
    const float second = add(odd ? sums[3] : sums[2], odd ? sums[2] : sums[3], 1);
    const float half = add(upper ? second : first, upper ? first : second, 2);
    return half + __shfl_xor_sync(kAllLanes, half, 4);
  }

  static __device__ float dot(const uint4& a, const uint4& b) {
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

  const Problem<bf16>& p_;
  const Gradients<bf16>& g_;
  SharedMemory& shared_;
  int head_, row_of_all_, column_;  // of the thread's first piece of the head's first tile
  // Of the tile that is on its way. Σ_d out · dout is computed in the head's first round, and kept.
  int tile_;
  bool has_out_;
  uint4 out_[kCopies];
  float logsumexp_;  // of the own row
};

/// The copying group: waits for the copies of a tile, then for the place of the next one.
template <class Way>
__device__ void produce(const Problem<bf16>& p, const Gradients<bf16>& g, const Input& input,
                        SharedMemory& shared) {
  const int tiles = p.queries / kTile;
  const int heads = p.batch * p.heads;
  Copier copier(p, g, shared);
  GateGradients gates(tiles);
  Place now{static_cast<int>(blockIdx.x), 0, tiles - 1};
  int blocks = 0;
  bool brings = false;
  for (int n = 0;; ++n) {
    if (brings) {
      copier.hand_over((n - 1) % kStages);
    }
    if (Way::kGate && n == gates.due()) {
      gates.add_block(p, input, shared);
    }
    brings = now.head < heads;
    if (!brings) {
      if (!Way::kGate || gates.done(p)) {
        return;
      }
      continue;
    }
    if (now.tile == tiles - 1) {
      if (now.block == 0) {
        copier.seek(now.head);
      }
      if constexpr (!Way::kGate) {  // otherwise, their torque has been added
        barrier_at(shared.keys_free[blocks % 2]).wait(blocks / 2 - 1);
      }
      barrier_at(shared.values_free).wait(blocks - 1);
      copier.bring_keys(now.block, shared.keys[blocks % 2]);
      if constexpr (Way::kTurn == Turn::kPhases) {
        static_assert(kGroups * kTile == kGroupThreads);  // a thread for each token
        prefetch_l2(
            pairs_of(input.phases, p, now.head,
                     kGroups * now.block * kTile + static_cast<int>(threadIdx.x) % kGroupThreads));
      }
      ++blocks;
    }
    barrier_at(shared.free[n % kStages]).wait(n / kStages - 1);
    copier.bring(now.block, now.tile, n % kStages);
    now.advance(tiles);
  }
}

}  // namespace carope::cuda::tiled
