#include <dnnl.h>

#include "core/error.h"
#include "ops/matmul/matmul_cpu.h"

namespace carope::cpu {

void sgemm(const MatmulShape& shape, Matrix a, Matrix b, Matrix c, Write write, float alpha) {
  const dnnl_status_t status = dnnl_sgemm(
      a.transposed ? 'T' : 'N', b.transposed ? 'T' : 'N', shape.m, shape.n, shape.k, alpha, a.data,
      a.stride, b.data, b.stride, write == Write::kAccumulate ? 1.0F : 0.0F, c.data, c.stride);
  check<Error>(status == dnnl_success, "oneDNN refused a {}x{}x{} matrix product (status {})",
               shape.m, shape.n, shape.k, static_cast<int>(status));
}

Tiling Tiling::of(const MatmulShape& shape) {
  // Enough tasks to balance sixteen threads; tiles tall enough to amortise the packing of the right
  // operand and narrow enough for it to stay in cache.
  constexpr std::int64_t kTasks = 16;
  constexpr std::int64_t kMinSide = 64;
  constexpr std::int64_t kMaxRows = 256;
  constexpr std::int64_t kMaxCols = 512;
  const auto divide_up = [](std::int64_t a, std::int64_t b) { return (a + b - 1) / b; };
  const auto side = [&](std::int64_t value, std::int64_t largest) {
    return std::clamp(divide_up(value, 16) * 16, kMinSide, largest);
  };

  const std::int64_t across = divide_up(shape.n, kMaxCols);
  const std::int64_t rows = side(shape.m * across / kTasks, kMaxRows);
  const std::int64_t pieces = std::max(across, divide_up(kTasks, divide_up(shape.m, rows)));
  return {rows, side(divide_up(shape.n, pieces), kMaxCols)};
}

}  // namespace carope::cpu
