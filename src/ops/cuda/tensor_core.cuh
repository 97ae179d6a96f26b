#pragma once

#include "ops/cuda/kernel.cuh"

// Products of small bf16 matrices on the tensor cores (mma.sync, sm_80 and later), and the shared
// memory they read from.
namespace carope::cuda {

/// A 16 x 16 matrix of bf16 spread over a warp as four 8 x 8 ones, as ldmatrix delivers and mma
/// takes them. Lane l holds elements (l / 4, 2 (l % 4) + {0, 1}) of each.
struct Fragment {
  std::uint32_t part[4];
};

__device__ inline std::uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const std::uint32_t&>(pair);
}

__device__ inline float2 unpack_bf16(std::uint32_t pair) {
  return __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(pair));
}

/// c += a b for a [16, 16], b [16, 8], c [16, 8]. Lane l holds c at rows l / 4 (c[0], c[1]) and
/// l / 4 + 8 (c[2], c[3]), columns 2 (l % 4) + {0, 1}.
__device__ inline void multiply_add(float (&c)[4], const Fragment& a, std::uint32_t b0,
                                    std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a.part[0]), "r"(a.part[1]), "r"(a.part[2]), "r"(a.part[3]), "r"(b0), "r"(b1));
}

/// Two neighbouring results of multiply_add, 16 x 16 together, as the left factor of the next
/// product: rows and columns are spread over the lanes in the same way.
__device__ inline Fragment as_left_factor(const float (&left)[4], const float (&right)[4]) {
  return {{pack_bf16(left[0], left[1]), pack_bf16(left[2], left[3]), pack_bf16(right[0], right[1]),
           pack_bf16(right[2], right[3])}};
}

/// 2^x to two units in the last place, one instruction; tiny results become zero.
__device__ inline float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ inline std::uint32_t shared_address(const void* shared) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
}

/// Starts a copy of 16 bytes to shared memory, or of zeros if not `valid`.
__device__ inline void copy_16_bytes(std::uint32_t to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(valid ? 16 : 0)
               : "memory");
}
__device__ inline void copy_8_bytes(std::uint32_t to, const void* from, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(from),
               "r"(valid ? 8 : 0)
               : "memory");
}
/// Makes a group of the copies this thread has started since the last one.
__device__ inline void close_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Waits until no more than the last kGroups groups of this thread are on their way.
template <int kGroups>
__device__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}
/// Waits until the whole block's copies have arrived.
__device__ inline void finish_copies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
  __syncthreads();
}

/// Rows of kDim bf16 in shared memory. The 16-byte pieces of a row are permuted so that the same
/// piece of eight consecutive rows lies in eight different groups of banks: a row of 128 bytes or
/// more covers all eight groups, of a row of 64 bytes two make up one round of the banks.
template <int kDim>
struct SharedRows {
  static constexpr int kPieces = kDim / 8;
  static constexpr int kRowBytes = kDim * 2;
  static_assert(kPieces == 4 || kPieces == 8 || kPieces == 16);

  std::uint32_t base;

  __device__ SharedRows from(int row) const { return {base + row * kRowBytes}; }

  __device__ std::uint32_t at(int row, int piece) const {
    const int turn = kPieces >= 8 ? row & 7 : (row >> 1) & 3;
    return base + row * kRowBytes + ((piece ^ turn) << 4);
  }

  /// The 16 x 16 matrix at (row, 16 * column). As the left factor of a product its parts are in
  /// order; as the right factor in a product with its transpose, columns 0..7 of the result take
  /// parts 0 and 2, columns 8..15 parts 1 and 3.
  __device__ Fragment load(int row, int column, int lane = threadIdx.x % kWarp) const {
    Fragment f;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(f.part[0]), "=r"(f.part[1]), "=r"(f.part[2]), "=r"(f.part[3])
                 : "r"(lane_address(row, column, lane))
                 : "memory");
    return f;
  }
  /// The same as the right factor of a product: columns 0..7 of the result take parts 0 and 1,
  /// columns 8..15 parts 2 and 3.
  __device__ Fragment load_right(int row, int column, int lane = threadIdx.x % kWarp) const {
    Fragment f;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(f.part[0]), "=r"(f.part[1]), "=r"(f.part[2]), "=r"(f.part[3])
                 : "r"(lane_address(row, column, lane))
                 : "memory");
    return f;
  }

 private:
  /// Lanes 8i .. 8i + 7 name the rows of part i: parts 1 and 3 are eight rows below 0 and 2, parts
  /// 2 and 3 eight columns to the right of 0 and 1.
  __device__ std::uint32_t lane_address(int row, int column, int lane) const {
    return at(row + lane % 16, 2 * column + lane / 16);
  }
};

/// Starts the copy of `count` rows by a block of kThreads; those past `valid` become zero.
template <int kThreads, int kRows, int kDim>
__device__ void copy_rows(const SharedRows<kDim>& to, const bf16* from, std::int64_t stride,
                          int valid) {
  constexpr int kPieces = SharedRows<kDim>::kPieces;
  constexpr int kStep = kThreads / kPieces;
  static_assert(kRows % kStep == 0 && kStep % 8 == 0);  // so the permutation stays the same
  const int row = static_cast<int>(threadIdx.x) / kPieces;
  const int piece = static_cast<int>(threadIdx.x) % kPieces;
  const std::uint32_t target = to.at(row, piece);
  const bf16* source = from + row * stride + piece * 8;
#pragma unroll
  for (int i = 0; i < kRows / kStep; ++i) {
    const bool exists = row + i * kStep < valid;
    copy_16_bytes(target + i * kStep * SharedRows<kDim>::kRowBytes,
                  exists ? source + i * kStep * stride : from, exists);
  }
}

/// Writes a warp's results, kTiles x 16 rows of kDim, times one factor a row (of each lane's two
/// rows a tile) to global memory in whole 16-byte pieces. They pass through `stage`, rows of shared
/// memory that only this warp uses.
template <int kTiles, int kDim>
__device__ void store_rows(const SharedRows<kDim>& stage, const float (&rows)[kTiles][kDim / 8][4],
                           const float (&factor)[kTiles][2], bf16* to, std::int64_t stride,
                           int valid) {
  constexpr int kPieces = SharedRows<kDim>::kPieces;
  const int lane = threadIdx.x % kWarp;
  __syncwarp();
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = m * 16 + half * 8 + lane / 4;
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) {
        const float* pair = &rows[m][piece][2 * half];
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(stage.at(row, piece) + lane % 4 * 4),
                     "r"(pack_bf16(pair[0] * factor[m][half], pair[1] * factor[m][half]))
                     : "memory");
      }
    }
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kTiles * 16 * kPieces / static_cast<int>(kWarp); ++i) {
    const int index = lane + i * static_cast<int>(kWarp);
    const int row = index / kPieces;
    const int piece = index % kPieces;
    uint4 value;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "r"(stage.at(row, piece))
                 : "memory");
    if (row < valid) {
      __stwb(reinterpret_cast<uint4*>(to + row * stride + piece * 8), value);
    }
  }
}

}  // namespace carope::cuda
