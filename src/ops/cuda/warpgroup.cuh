#pragma once

#include "ops/cuda/shared_barrier.cuh"
#include "ops/cuda/tensor_core.cuh"

// What only Hopper has (sm_90a): products of four warps together, a warpgroup, which read their
// factors from shared memory on their own, and barriers in shared memory.
namespace carope::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
inline constexpr bool kHopper = true;
#else
inline constexpr bool kHopper = false;
#endif

inline constexpr int kGroupThreads = 4 * kWarp;

/// A 64 x 64 result spread over a warpgroup. Lane l of warp w holds [4 n + 2 half + i] of row
/// 16 w + 8 half + l / 4 and column 8 n + 2 (l % 4) + i.
using GroupSums = float[32];
/// Results of 64 x 128 and 64 x 256, likewise.
using DoubleSums = float[64];
using QuadrupleSums = float[128];
/// A 64 x 64 left factor in registers: each warp has its 16 rows.
using GroupFactor = Fragment[4];

/// Rows of 64 bf16 that lie in shared memory as SharedRows<64> does, from an address that is a
/// multiple of 1024, as a factor of such a product.
class SharedFactor {
 public:
  /// Rows are the result's rows (of a left factor) or columns (of a right one).
  static __device__ SharedFactor along_result(std::uint32_t address) { return {address, 32, 16}; }
  /// Rows, 64 of them, are what the product sums over. A result with more than 64 columns takes
  /// more such rows, `next` bytes further on for each 64.
  static __device__ SharedFactor along_sum(std::uint32_t address, int next = 16) {
    return {address, 16 * 128, next};
  }

  /// The part with elements 16 step .. 16 step + 15 of the sum, as the hardware is told: its
  /// address, 1024 bytes from eight rows to the next eight, pieces permuted within 128 bytes.
  __device__ std::uint64_t part(int step) const {
    return (std::uint64_t{1} << 62) | (std::uint64_t{1024 >> 4} << 32) |
           (static_cast<std::uint64_t>(next_ >> 4) << 16) | ((address_ + step * bytes_) >> 4);
  }

 private:
  __device__ SharedFactor(std::uint32_t address, int bytes, int next)
      : address_(address & 0x3FFFF), bytes_(bytes), next_(next) {}

  std::uint32_t address_;  // without the number of the block in its cluster, which is above it
  int bytes_;              // from one part to the next
  int next_;               // from 64 of the result to the next, where rows are what is summed over
};

/// Between writing registers and the products that use them.
__device__ inline void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
/// Closes a set of products, to be waited for together.
__device__ inline void close_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Waits until at most kPending sets are under way. Their results must not be touched before.
template <int kPending>
__device__ void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
/// Keeps the compiler from moving uses of a result to before the wait for it.
template <int N>
__device__ void settle(float (&sums)[N]) {
#pragma unroll
  for (float& sum : sums) {
    asm volatile("" : "+f"(sum)::"memory");
  }
}

/// Starts sums (+)= left right for 16 elements of the sum. kLeftSum, kRightSum: whether the factor
/// is along_sum.
template <bool kLeftSum, bool kRightSum>
__device__ void start_multiply(GroupSums& sums, std::uint64_t left, std::uint64_t right, bool add) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "%32, %33, add, 1, 1, %35, %36;\n}"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3]), "+f"(sums[4]), "+f"(sums[5]),
        "+f"(sums[6]), "+f"(sums[7]), "+f"(sums[8]), "+f"(sums[9]), "+f"(sums[10]), "+f"(sums[11]),
        "+f"(sums[12]), "+f"(sums[13]), "+f"(sums[14]), "+f"(sums[15]), "+f"(sums[16]),
        "+f"(sums[17]), "+f"(sums[18]), "+f"(sums[19]), "+f"(sums[20]), "+f"(sums[21]),
        "+f"(sums[22]), "+f"(sums[23]), "+f"(sums[24]), "+f"(sums[25]), "+f"(sums[26]),
        "+f"(sums[27]), "+f"(sums[28]), "+f"(sums[29]), "+f"(sums[30]), "+f"(sums[31])
      : "l"(left), "l"(right), "r"(static_cast<int>(add)), "n"(kLeftSum), "n"(kRightSum));
}
template <bool kLeftSum, bool kRightSum>
__device__ void start_multiply(DoubleSums& sums, std::uint64_t left, std::uint64_t right,
                               bool add) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, "
      "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, "
      "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, "
      "%53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "%64, %65, add, 1, 1, %67, %68;\n}"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3]), "+f"(sums[4]), "+f"(sums[5]),
        "+f"(sums[6]), "+f"(sums[7]), "+f"(sums[8]), "+f"(sums[9]), "+f"(sums[10]), "+f"(sums[11]),
        "+f"(sums[12]), "+f"(sums[13]), "+f"(sums[14]), "+f"(sums[15]), "+f"(sums[16]),
        "+f"(sums[17]), "+f"(sums[18]), "+f"(sums[19]), "+f"(sums[20]), "+f"(sums[21]),
        "+f"(sums[22]), "+f"(sums[23]), "+f"(sums[24]), "+f"(sums[25]), "+f"(sums[26]),
        "+f"(sums[27]), "+f"(sums[28]), "+f"(sums[29]), "+f"(sums[30]), "+f"(sums[31]),
        "+f"(sums[32]), "+f"(sums[33]), "+f"(sums[34]), "+f"(sums[35]), "+f"(sums[36]),
        "+f"(sums[37]), "+f"(sums[38]), "+f"(sums[39]), "+f"(sums[40]), "+f"(sums[41]),
        "+f"(sums[42]), "+f"(sums[43]), "+f"(sums[44]), "+f"(sums[45]), "+f"(sums[46]),
        "+f"(sums[47]), "+f"(sums[48]), "+f"(sums[49]), "+f"(sums[50]), "+f"(sums[51]),
        "+f"(sums[52]), "+f"(sums[53]), "+f"(sums[54]), "+f"(sums[55]), "+f"(sums[56]),
        "+f"(sums[57]), "+f"(sums[58]), "+f"(sums[59]), "+f"(sums[60]), "+f"(sums[61]),
        "+f"(sums[62]), "+f"(sums[63])
      : "l"(left), "l"(right), "r"(static_cast<int>(add)), "n"(kLeftSum), "n"(kRightSum));
}
template <bool kLeftSum, bool kRightSum>
__device__ void start_multiply(QuadrupleSums& sums, std::uint64_t left, std::uint64_t right,
                               bool add) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %130, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, "
      "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, "
      "%37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, "
      "%55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, "
      "%73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, "
      "%91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, "
      "%107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, "
      "%122, %123, %124, %125, %126, %127}, "
      "%128, %129, add, 1, 1, %131, %132;\n}"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3]), "+f"(sums[4]), "+f"(sums[5]),
        "+f"(sums[6]), "+f"(sums[7]), "+f"(sums[8]), "+f"(sums[9]), "+f"(sums[10]), "+f"(sums[11]),
        "+f"(sums[12]), "+f"(sums[13]), "+f"(sums[14]), "+f"(sums[15]), "+f"(sums[16]),
        "+f"(sums[17]), "+f"(sums[18]), "+f"(sums[19]), "+f"(sums[20]), "+f"(sums[21]),
        "+f"(sums[22]), "+f"(sums[23]), "+f"(sums[24]), "+f"(sums[25]), "+f"(sums[26]),
        "+f"(sums[27]), "+f"(sums[28]), "+f"(sums[29]), "+f"(sums[30]), "+f"(sums[31]),
        "+f"(sums[32]), "+f"(sums[33]), "+f"(sums[34]), "+f"(sums[35]), "+f"(sums[36]),
        "+f"(sums[37]), "+f"(sums[38]), "+f"(sums[39]), "+f"(sums[40]), "+f"(sums[41]),
        "+f"(sums[42]), "+f"(sums[43]), "+f"(sums[44]), "+f"(sums[45]), "+f"(sums[46]),
        "+f"(sums[47]), "+f"(sums[48]), "+f"(sums[49]), "+f"(sums[50]), "+f"(sums[51]),
        "+f"(sums[52]), "+f"(sums[53]), "+f"(sums[54]), "+f"(sums[55]), "+f"(sums[56]),
        "+f"(sums[57]), "+f"(sums[58]), "+f"(sums[59]), "+f"(sums[60]), "+f"(sums[61]),
        "+f"(sums[62]), "+f"(sums[63]), "+f"(sums[64]), "+f"(sums[65]), "+f"(sums[66]),
        "+f"(sums[67]), "+f"(sums[68]), "+f"(sums[69]), "+f"(sums[70]), "+f"(sums[71]),
        "+f"(sums[72]), "+f"(sums[73]), "+f"(sums[74]), "+f"(sums[75]), "+f"(sums[76]),
        "+f"(sums[77]), "+f"(sums[78]), "+f"(sums[79]), "+f"(sums[80]), "+f"(sums[81]),
        "+f"(sums[82]), "+f"(sums[83]), "+f"(sums[84]), "+f"(sums[85]), "+f"(sums[86]),
        "+f"(sums[87]), "+f"(sums[88]), "+f"(sums[89]), "+f"(sums[90]), "+f"(sums[91]),
        "+f"(sums[92]), "+f"(sums[93]), "+f"(sums[94]), "+f"(sums[95]), "+f"(sums[96]),
        "+f"(sums[97]), "+f"(sums[98]), "+f"(sums[99]), "+f"(sums[100]), "+f"(sums[101]),
        "+f"(sums[102]), "+f"(sums[103]), "+f"(sums[104]), "+f"(sums[105]), "+f"(sums[106]),
        "+f"(sums[107]), "+f"(sums[108]), "+f"(sums[109]), "+f"(sums[110]), "+f"(sums[111]),
        "+f"(sums[112]), "+f"(sums[113]), "+f"(sums[114]), "+f"(sums[115]), "+f"(sums[116]),
        "+f"(sums[117]), "+f"(sums[118]), "+f"(sums[119]), "+f"(sums[120]), "+f"(sums[121]),
        "+f"(sums[122]), "+f"(sums[123]), "+f"(sums[124]), "+f"(sums[125]), "+f"(sums[126]),
        "+f"(sums[127])
      : "l"(left), "l"(right), "r"(static_cast<int>(add)), "n"(kLeftSum), "n"(kRightSum));
}
template <bool kRightSum>
__device__ void start_multiply(GroupSums& sums, const Fragment& left, std::uint64_t right,
                               bool add) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%32, %33, %34, %35}, %36, add, 1, 1, %38;\n}"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3]), "+f"(sums[4]), "+f"(sums[5]),
        "+f"(sums[6]), "+f"(sums[7]), "+f"(sums[8]), "+f"(sums[9]), "+f"(sums[10]), "+f"(sums[11]),
        "+f"(sums[12]), "+f"(sums[13]), "+f"(sums[14]), "+f"(sums[15]), "+f"(sums[16]),
        "+f"(sums[17]), "+f"(sums[18]), "+f"(sums[19]), "+f"(sums[20]), "+f"(sums[21]),
        "+f"(sums[22]), "+f"(sums[23]), "+f"(sums[24]), "+f"(sums[25]), "+f"(sums[26]),
        "+f"(sums[27]), "+f"(sums[28]), "+f"(sums[29]), "+f"(sums[30]), "+f"(sums[31])
      : "r"(left.part[0]), "r"(left.part[1]), "r"(left.part[2]), "r"(left.part[3]), "l"(right),
        "r"(static_cast<int>(add)), "n"(kRightSum));
}

/// Starts a product with a sum over 64.
template <bool kLeftSum, bool kRightSum, int N>
__device__ void start_product(float (&sums)[N], const SharedFactor& left, const SharedFactor& right,
                              bool add) {
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    start_multiply<kLeftSum, kRightSum>(sums, left.part(step), right.part(step), add || step > 0);
  }
}
template <bool kRightSum>
__device__ void start_product(GroupSums& sums, const GroupFactor& left, const SharedFactor& right,
                              bool add) {
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    start_multiply<kRightSum>(sums, left[step], right.part(step), add || step > 0);
  }
}

/// A result as the left factor of the next product.
__device__ inline void as_left_factor(GroupFactor& factor, const GroupSums& sums) {
#pragma unroll
  for (int step = 0; step < 4; ++step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      factor[step].part[i] = pack_bf16(sums[8 * step + 2 * i], sums[8 * step + 2 * i + 1]);
    }
  }
}

/// The 64 rows at `rows` as a left factor in registers.
__device__ inline void load_left_factor(GroupFactor& factor, const SharedRows<64>& rows) {
  const int warp = threadIdx.x % kGroupThreads / kWarp;
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    factor[step] = rows.load(16 * warp, step);
  }
}

/// Calls visit(n, half, i) for the elements [4 n + 2 half + i] of a lane's GroupSums.
template <class Visit>
__device__ void for_each_sum(const Visit& visit) {
#pragma unroll
  for (int index = 0; index < 32; ++index) {
    visit(index / 4, index / 2 % 2, index % 2);
  }
}

/// Writes a result times a factor. The four lanes that share a row exchange their pairs of columns,
/// so that each has whole 16-byte pieces.
__device__ inline void store_tile(const GroupSums& sums, float factor, bf16* to,
                                  std::int64_t stride) {
  const int lane = threadIdx.x % kWarp;
  const bool odd = lane % 2 != 0;
  const bool upper = lane / 2 % 2 != 0;
  const auto exchange = [](std::uint32_t& a, std::uint32_t& b, bool second, int step) {
    const std::uint32_t got = __shfl_xor_sync(kAllLanes, second ? a : b, step);
    (second ? a : b) = got;
  };
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = threadIdx.x % kGroupThreads / kWarp * 16 + 8 * half + lane / 4;
#pragma unroll
    for (int piece = 0; piece < 8; piece += 4) {
      std::uint32_t pair[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* columns = sums + 4 * (piece + i) + 2 * half;
        pair[i] = pack_bf16(columns[0] * factor, columns[1] * factor);
      }
      exchange(pair[0], pair[1], odd, 1);
      exchange(pair[2], pair[3], odd, 1);
      exchange(pair[0], pair[2], upper, 2);
      exchange(pair[1], pair[3], upper, 2);
      __stwb(reinterpret_cast<uint4*>(to + row * stride + (piece + lane % 4) * 8),
             uint4{pair[0], pair[1], pair[2], pair[3]});
    }
  }
}

/// The inverse of SharedRows::load at its lane address.
__device__ inline void store_fragment(std::uint32_t lane_address, const Fragment& f) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(lane_address),
               "r"(f.part[0]), "r"(f.part[1]), "r"(f.part[2]), "r"(f.part[3])
               : "memory");
}

/// Makes what this thread wrote to shared memory visible to products started after the next
/// barrier.
__device__ inline void publish_to_products() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// Changes how many registers each thread of this warpgroup has: more, once others have left some.
template <int kRegisters>
__device__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ void leave_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace carope::cuda
