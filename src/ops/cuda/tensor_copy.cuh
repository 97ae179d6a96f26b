#pragma once

#include <cuda.h>

#include <array>

#include "ops/cuda/warpgroup.cuh"

// Copies of tiles from global to shared memory by Hopper's copy engine, which one thread starts.
// In shared memory a tile lies as SharedRows<64> has it.
namespace carope::cuda {

/// Describes a bf16 matrix [rows, cols] to the copy engine, to be copied in tiles of `tile_rows`
/// rows and 64 columns. The driver is asked through the runtime, so that the program starts where
/// there is no driver.
inline CUtensorMap tiles_of(const Tensor& matrix, unsigned tile_rows) {
  static const auto encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found{};
#if CUDART_VERSION >= 12050
    constexpr unsigned kSince = 12000;
    CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, kSince,
                                                cudaEnableDefault, &found));
#else
    CUDA_CHECK(
        cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &function, cudaEnableDefault, &found));
#endif
    check<DeviceError>(found == cudaDriverEntryPointSuccess,
                       "the GPU's driver has no cuTensorMapEncodeTiled: update it to one for CUDA "
                       "12.0 or later");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  }();
  const std::array<cuuint64_t, 2> shape{static_cast<cuuint64_t>(matrix.cols()),
                                        static_cast<cuuint64_t>(matrix.rows())};
  const std::array<cuuint64_t, 1> row_bytes{shape[0] * sizeof(bf16)};
  const std::array<cuuint32_t, 2> tile{64, tile_rows};
  const std::array<cuuint32_t, 2> every{1, 1};
  CUtensorMap map;
  const CUresult result = encode(
      &map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, matrix.raw(), shape.data(), row_bytes.data(),
      tile.data(), every.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  check<DeviceError>(result == CUDA_SUCCESS,
                     "cuTensorMapEncodeTiled: error {} for tiles of {} rows of a matrix {}",
                     static_cast<int>(result), tile_rows, matrix.shape());
  return map;
}

/// Makes barriers known to the copy engine and to other blocks, once they are set up.
__device__ inline void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/// Starts the copy of the tile at (row, column) to shared memory; `arrived` counts its bytes.
__device__ inline void load_tile(std::uint32_t to, const CUtensorMap& map, int row, int column,
                                 const SharedBarrier& arrived) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3}], [%4];" ::"r"(to),
      "l"(&map), "r"(column), "r"(row), "r"(arrived.address)
      : "memory");
}
/// The same to the shared memory of all blocks in `mask`, each of whose barriers counts.
__device__ inline void load_tile_for(int mask, std::uint32_t to, const CUtensorMap& map, int row,
                                     int column, const SharedBarrier& arrived) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
      "l"(&map), "r"(column), "r"(row), "r"(arrived.address), "h"(static_cast<short>(mask))
      : "memory");
}

/// Brings the tile at (row, column) into the L2 cache.
__device__ inline void prefetch_tile(const CUtensorMap& map, int row, int column) {
  asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];" ::"l"(&map),
               "r"(column), "r"(row)
               : "memory");
}

/// This block's number in its cluster.
__device__ inline int cluster_rank() {
  std::uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return static_cast<int>(rank);
}
/// Waits for all threads of the cluster.
__device__ inline void sync_cluster() {
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
}
/// Arrives at the barrier that the cluster's block `rank` has at the same address. What this thread
/// wrote is not made known to that block: a fence for that would wait for all of it.
__device__ inline void arrive_at(const SharedBarrier& barrier, int rank) {
  asm volatile(
      "{\n.reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(barrier.address),
      "r"(rank)
      : "memory");
}

}  // namespace carope::cuda
