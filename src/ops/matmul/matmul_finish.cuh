#pragma once

#include <cuda_fp16.h>

#include "ops/matmul/gelu.cuh"
#include "ops/matmul/matmul_tiles.cuh"

// The last part of a product: what is done with its sums.
namespace carope::cuda::matmul {

/// Sums over the four lanes that have the same lane % 8. Lane l gets the sums of
/// values[l / 16 * 4 + l / 8 % 2 * 2] and of the one after it.
__device__ inline float2 spread_sums(float (&values)[8]) {
  const auto lane = static_cast<int>(threadIdx.x % kWarp);
#pragma unroll
  for (int half = 4; half > 1; half /= 2) {
    const bool upper = (lane & (4 * half)) != 0;
#pragma unroll
    for (int i = 0; i < half; ++i) {
      const float sent = upper ? values[i] : values[i + half];
      const float kept = upper ? values[i + half] : values[i];
      values[i] = kept + __shfl_xor_sync(kAllLanes, sent, 4 * half);
    }
  }
  return {values[0], values[1]};
}

/// Finishes what every kFinishers-th warp hands over: always the same ones, because a barrier tells
/// one use of a slot only from the one before. Some may have a giver less than others. A lane has
/// 16 bytes of every fourth row.
template <Pass kPass>
class Finish {
 public:
  __device__ Finish(const Product& p, const SharedMemory& shared)
      : p_(p),
        warp_(static_cast<int>(threadIdx.x - kConsumers) / kWarp),
        lane_(static_cast<int>(threadIdx.x % kWarp)),
        from_(shared.pieces[warp_][0]),
        filled_(shared_address(shared.piece_filled[warp_])),
        free_(shared_address(shared.piece_free[warp_])),
        to_next_giver_(std::int64_t{kFinishers * kPieceRows} * p.width) {}

  __device__ void tiles() {
    Walk<kPass> walk(p_);
    if (!walk.more()) {
      return;
    }
    std::int64_t at = start(walk.place());
    if constexpr (kPass == Pass::kBackward) {
      const bf16* from = p_.saved + at;
#pragma unroll
      for (uint4& rows : saved_) {
        rows = load_rows(from);
      }
    }
    while (walk.more()) {
      const Walk<kPass> here = walk;
      walk.advance();
      const std::int64_t next = walk.more() ? start(walk.place()) : at;
      if constexpr (kPass == Pass::kPowers) {
        const Place place = here.place();
        tile(at, next, (p_.width - place.column) / kPieceCols);
        store_row_shares(place);
      } else {
        tile(at, next, kPieces);
        if (kPass == Pass::kBackward && here.ends_column()) {
          store_column_shares(here.place());
        }
      }
      at = next;
    }
  }

 private:
  static constexpr int kFinishers = Team<kPass>::kFinishers;
  static constexpr int kGivers = (kConsumerWarps + kFinishers - 1) / kFinishers;  // at most
  static constexpr int kTurns = kPieceRows / 4;
  /// The sums of powers that each giver has must stay in registers.
  static constexpr int kGiversAtOnce = kPass == Pass::kPowers ? kGivers : 1;

  __device__ int givers() const {
    return kConsumerWarps % kFinishers == 0 ? kGivers
                                            : (kConsumerWarps - 1 - warp_) / kFinishers + 1;
  }

  /// Index of this lane's first element of a tile.
  __device__ std::int64_t start(const Place& at) const {
    return std::int64_t{at.row + warp_ * kPieceRows + lane_ / 8} * p_.width + at.column +
           lane_ % 8 * 8;
  }

  // What one turn reads or writes. The address goes on to the next turn's.
  __device__ uint4 load_rows(const bf16*& from) const {
    const uint4 rows = __ldcs(reinterpret_cast<const uint4*>(from));
    from += std::int64_t{4} * p_.width;
    return rows;
  }
  __device__ void store_rows(bf16*& to, const uint4& rows) const {
    __stcs(reinterpret_cast<uint4*>(to), rows);
    to += std::int64_t{4} * p_.width;
  }

  /// The tile that starts at `at`. `next`: start of the one after it. Of powers only so many pieces
  /// are within the result.
  __device__ void tile(std::int64_t at, std::int64_t next, int pieces) {
#pragma unroll 1
    for (int piece = 0; piece < kPieces; ++piece) {
      float sums[8] = {};
      const std::int64_t first = at + piece * kPieceCols;
      const std::int64_t after = piece + 1 == kPieces ? next : first + kPieceCols;
#pragma unroll kGiversAtOnce
      for (int giver = 0; giver < kGivers; ++giver) {
        if (giver == givers()) {
          break;
        }
        const std::int64_t to = first + giver * to_next_giver_;
        uint4 values[kTurns];
        take_piece(piece, giver, values);
        if constexpr (kPass == Pass::kPowers) {
          if (piece < pieces) {
            finish_powers(values, to, row_sums_[giver]);
          }
        } else {
          const std::int64_t then = giver + 1 == givers() ? after : to + to_next_giver_;
          if (p_.slopes) {
            finish_piece<true>(values, to, then, sums);
          } else {
            finish_piece<false>(values, to, then, sums);
          }
        }
      }
      if constexpr (kPass == Pass::kBackward) {
        const float2 column = spread_sums(sums);
        // The sums of this piece's columns come first; after all pieces they do again.
        const float2 total{column_sums_[0].x + column.x, column_sums_[0].y + column.y};
#pragma unroll
        for (int i = 0; i + 1 < kPieces; ++i) {
          column_sums_[i] = column_sums_[i + 1];
        }
        column_sums_[kPieces - 1] = total;
      }
    }
    times_ += kPieces / kSlots;
  }

  /// Waits for a piece and makes room for the next one.
  __device__ __forceinline__ void take_piece(int piece, int giver, uint4 (&values)[kTurns]) const {
    const int slot = giver * kFinishers * kSlots + piece % kSlots;
    const int barrier = slot * static_cast<int>(sizeof(std::uint64_t));
    SharedBarrier{filled_ + barrier}.wait(times_ + piece / kSlots);
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      values[i] = *reinterpret_cast<const uint4*>(from_ + slot * kPieceBytes +
                                                  Rows64{0}.at(lane_ / 8 + 4 * i, lane_ % 8));
    }
    __syncwarp();
    if (lane_ == 0) {
      SharedBarrier{free_ + barrier}.arrive();
    }
  }

  /// `to`: index of this lane's first element, `after`: that in the piece to come. kSlopes: what is
  /// saved of the GELU.
  template <bool kSlopes>
  __device__ __forceinline__ void finish_piece(uint4 (&values)[kTurns], std::int64_t to,
                                               std::int64_t after, float (&sums)[8]) {
    bf16* result = p_.result + to;
    bf16* saved = p_.saved + to;
    const bf16* next_saved = p_.saved + after;
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      if constexpr (kPass == Pass::kForward) {
        uint4 kept = values[i];
        activate<kSlopes>(values[i], kept);
        store_rows(saved, kept);
      } else {
        differentiate<kSlopes>(values[i], saved_[i], sums);
        saved_[i] = load_rows(next_saved);
      }
      store_rows(result, values[i]);
    }
  }

  /// Stores two to these exponents, and adds them to the sums of a lane's rows.
  __device__ __forceinline__ void finish_powers(uint4 (&values)[kTurns], std::int64_t to,
                                                float (&sums)[kTurns]) const {
    bf16* result = p_.result + to;
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      for (std::uint32_t* pair : {&values[i].x, &values[i].y, &values[i].z, &values[i].w}) {
        const float2 power = powers_of(*pair);
        sums[i] += power.x + power.y;
        *pair = pack_bf16(power.x, power.y);
      }
      store_rows(result, values[i]);
    }
  }

  /// Two to the exponents, which are limited: neither a sum of powers nor a product with them
  /// becomes infinite. A NaN stays one.
  static __device__ float2 powers_of(std::uint32_t exponents) {
    const __half2 limited = __hmin2_nan(reinterpret_cast<const __half2&>(exponents),
                                        __float2half2_rn(kLargestExponent));
    const float2 x = __half22float2(limited);
    return {fast_exp2(x.x), fast_exp2(x.y)};
  }

  /// `kept`: the inputs, which become slopes if these are saved.
  template <bool kSlopes>
  static __device__ void activate(uint4& values, uint4& kept) {
    std::uint32_t* const pairs[4] = {&values.x, &values.y, &values.z, &values.w};
    std::uint32_t* const inputs[4] = {&kept.x, &kept.y, &kept.z, &kept.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 x = unpack_bf16(*inputs[i]);
      const FastGelu first(x.x);
      const FastGelu second(x.y);
      *pairs[i] = pack_bf16(first.value(), second.value());
      if constexpr (kSlopes) {
        *inputs[i] = pack_bf16(first.derivative(), second.derivative());
      }
    }
  }

  template <bool kSlopes>
  static __device__ void differentiate(uint4& values, const uint4& saved, float (&sums)[8]) {
    std::uint32_t* const pairs[4] = {&values.x, &values.y, &values.z, &values.w};
    const std::uint32_t kept[4] = {saved.x, saved.y, saved.z, saved.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float2 value = unpack_bf16(*pairs[i]);
      const float2 x = unpack_bf16(kept[i]);
      value.x *= kSlopes ? x.x : FastGelu(x.x).derivative();
      value.y *= kSlopes ? x.y : FastGelu(x.y).derivative();
      sums[2 * i] += value.x;
      sums[2 * i + 1] += value.y;
      *pairs[i] = pack_bf16(value.x, value.y);
    }
  }

  __device__ void store_column_shares(const Place& at) {
    float* to = p_.shares + (std::int64_t{at.share} * kFinishers + warp_) * p_.width + at.column +
                lane_ % 8 * 8 + lane_ / 16 * 4 + lane_ / 8 % 2 * 2;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      if (p_.shares != nullptr) {
        *reinterpret_cast<float2*>(to + i * kPieceCols) = column_sums_[i];
      }
      column_sums_[i] = {};
    }
  }

  /// The shares of this tile in the sums of its rows [columns of tiles, rows].
  __device__ void store_row_shares(const Place& at) {
    float* to = p_.shares + std::int64_t{at.column / kCols} * p_.rows + at.row +
                warp_ * kPieceRows + lane_ / 8;
#pragma unroll
    for (int giver = 0; giver < kGivers; ++giver) {
#pragma unroll
      for (int i = 0; i < kTurns; ++i) {
        float sum = row_sums_[giver][i];
#pragma unroll
        for (int step = 1; step < 8; step *= 2) {
          sum += __shfl_xor_sync(kAllLanes, sum, step);
        }
        if (lane_ % 8 == 0 && giver < givers()) {
          to[giver * kFinishers * kPieceRows + 4 * i] = sum;
        }
        row_sums_[giver][i] = 0.0F;
      }
    }
  }

  const Product& p_;
  int warp_;
  int lane_;
  const std::byte* from_;  // the first slot
  std::uint32_t filled_;
  std::uint32_t free_;
  std::int64_t to_next_giver_;        // elements
  uint4 saved_[kTurns];               // of the piece to come
  float2 column_sums_[kPieces] = {};  // of two columns in each piece
  float row_sums_[kGivers][kTurns] = {};
  int times_ = 0;  // that each slot has been used
};

}  // namespace carope::cuda::matmul
