#include <dnnl.h>

#include "core/error.h"
#include "ops/matmul_cpu.h"

namespace carope::cpu {

void sgemm(const MatmulShape& shape, Matrix a, Matrix b, Matrix c, Write write, float alpha) {
  const dnnl_status_t status = dnnl_sgemm(
      a.transposed ? 'T' : 'N', b.transposed ? 'T' : 'N', shape.m, shape.n, shape.k, alpha, a.data,
      a.stride, b.data, b.stride, write == Write::kAccumulate ? 1.0F : 0.0F, c.data, c.stride);
  check<Error>(status == dnnl_success, "oneDNN refused a {}x{}x{} matrix product (status {})",
               shape.m, shape.n, shape.k, static_cast<int>(status));
}

Tiling Tiling::of(const MatmulShape& shape) {
  // Enough tasks to balance sixteen threads, tiles large enough to amortise the packing of the
  // operands.
  constexpr std::int64_t kTasks = 16;
  constexpr std::int64_t kMaxRows = 256;
  constexpr std::int64_t kMinRows = 64;
  constexpr std::int64_t kMinCols = 64;
  constexpr std::int64_t kMaxCols = 2048;
  const auto round_up = [](std::int64_t value, std::int64_t unit) {
    return (value + unit - 1) / unit * unit;
  };

  const std::int64_t rows = std::clamp(round_up(shape.m / kTasks, 16), kMinRows, kMaxRows);
  const std::int64_t tiles_down = (shape.m + rows - 1) / rows;
  const std::int64_t pieces = (kTasks + tiles_down - 1) / tiles_down;
  const std::int64_t cols = std::clamp(round_up(shape.n / pieces, 16), kMinCols, kMaxCols);
  return {rows, cols};
}

}  // namespace carope::cpu
