#include "ops/linear.h"
#include "ops/matmul/matmul_cpu.h"
#include "ops/simd_cpu.h"

namespace carope::cpu {
namespace {

/// Adds to each row of a tile of y: a bias the same numbers (stride 0), a residual its own.
void add_to_rows(const Tile& tile, const Tensor& added, std::int64_t stride, const Tensor& y) {
  const std::int64_t n = y.cols();
  for (std::int64_t row = tile.row_begin; row < tile.row_end; ++row) {
    const float* in = added.f32() + row * stride;
    float* out = y.f32() + row * n;
#pragma omp simd
    for (std::int64_t col = tile.col_begin; col < tile.col_end; ++col) {
      out[col] += in[col];
    }
  }
}
void add_bias(const Tile& tile, const Tensor& bias, const Tensor& y) {
  if (bias) {
    add_to_rows(tile, bias, 0, y);
  }
}

constexpr std::int64_t kColumns = 64;  // summed together

/// sums[c] = (or +=) the sum over rows of dy[row, c], for columns [begin, end).
void sum_columns(const Tensor& dy, std::int64_t begin, std::int64_t end, float* sums, Write write) {
  // Short runs of fp32 additions inside an fp64 total: accurate for any number of rows.
  constexpr std::int64_t kRun = 64;
  const std::int64_t stride = dy.cols();
  for (std::int64_t col = begin; col < end; col += kColumns) {
    const std::int64_t width = std::min(kColumns, end - col);
    double total[kColumns] = {};
    for (std::int64_t first = 0; first < dy.rows(); first += kRun) {
      float run[kColumns] = {};
      for (std::int64_t row = first; row < std::min(dy.rows(), first + kRun); ++row) {
        const float* values = dy.f32() + row * stride + col;
#pragma omp simd
        for (std::int64_t i = 0; i < width; ++i) {
          run[i] += values[i];
        }
      }
      for (std::int64_t i = 0; i < width; ++i) {
        total[i] += run[i];
      }
    }
    for (std::int64_t i = 0; i < width; ++i) {
      const double old = write == Write::kAccumulate ? sums[col + i] : 0.0;
      sums[col + i] = static_cast<float>(old + total[i]);
    }
  }
}

Matrix plain(const Tensor& tensor) { return {tensor.f32(), tensor.cols(), false}; }
Matrix transposed(const Tensor& tensor) { return {tensor.f32(), tensor.cols(), true}; }

}  // namespace

void linear(Context& ctx, const Tensor& x, const Tensor& weight, const Tensor& bias,
            const Tensor& y, Rounding rounding) {
  matmul(ctx, {x.rows(), weight.dim(0), x.cols()}, plain(x), transposed(weight), plain(y),
         Write::kOverwrite, rounding, [&](const Tile& tile) { add_bias(tile, bias, y); });
}

void linear_add(Context& ctx, const Tensor& x, const Tensor& weight, const Tensor& bias,
                const Tensor& residual, const Tensor& y, Rounding rounding) {
  matmul(ctx, {x.rows(), weight.dim(0), x.cols()}, plain(x), transposed(weight), plain(y),
         Write::kOverwrite, rounding, [&](const Tile& tile) {
           add_bias(tile, bias, y);
           add_to_rows(tile, residual, y.cols(), y);
         });
}

void linear_gelu(Context& ctx, const Tensor& x, const Tensor& weight, const Tensor& bias,
                 const SavedGelu& saved, const Tensor& y, Rounding rounding) {
  const Tensor& pre = saved.kept() ? saved.kept() : y;
  matmul(ctx, {x.rows(), weight.dim(0), x.cols()}, plain(x), transposed(weight), plain(pre),
         Write::kOverwrite, rounding, [&](const Tile& tile) {
           add_bias(tile, bias, pre);
           const std::int64_t n = pre.cols();
           for (std::int64_t row = tile.row_begin; row < tile.row_end; ++row) {
             float* in = pre.f32() + row * n;
             float* out = y.f32() + row * n;
#pragma omp simd
             for (std::int64_t col = tile.col_begin; col < tile.col_end; ++col) {
               out[col] = gelu(in[col]);
             }
             if (saved.slope) {
#pragma omp simd
               for (std::int64_t col = tile.col_begin; col < tile.col_end; ++col) {
                 in[col] = gelu_derivative(in[col]);
               }
             }
           }
         });
}

void gelu(Context& ctx, const Tensor& pre, const Tensor& y) {
  constexpr std::int64_t kElements = 16384;  // a task
  parallel_blocks(ctx, pre.size(), kElements, [&](std::int64_t begin, std::int64_t end) {
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) {
      y.f32()[i] = gelu(pre.f32()[i]);
    }
  });
}

void linear_backward_input(Context& ctx, const Tensor& dy, const Tensor& weight, const Tensor& dx,
                           Write write) {
  matmul(ctx, {dy.rows(), weight.dim(1), dy.cols()}, plain(dy), plain(weight), plain(dx), write);
}

void linear_backward_gelu(Context& ctx, const Tensor& dy, const Tensor& weight,
                          const SavedGelu& saved, const Tensor& dpre, const Tensor& dbias,
                          Write write) {
  matmul(ctx, {dy.rows(), weight.dim(1), dy.cols()}, plain(dy), plain(weight), plain(dpre),
         Write::kOverwrite, Rounding::kAsFastest, [&](const Tile& tile) {
           const std::int64_t n = dpre.cols();
           for (std::int64_t row = tile.row_begin; row < tile.row_end; ++row) {
             const float* in = saved.kept().f32() + row * n;
             float* out = dpre.f32() + row * n;
             if (saved.slope) {
#pragma omp simd
               for (std::int64_t col = tile.col_begin; col < tile.col_end; ++col) {
                 out[col] *= in[col];
               }
               continue;
             }
#pragma omp simd
             for (std::int64_t col = tile.col_begin; col < tile.col_end; ++col) {
               out[col] *= gelu_derivative(in[col]);
             }
           }
         });
  if (dbias) {
    parallel_blocks(ctx, dpre.cols(), kColumns, [&](std::int64_t begin, std::int64_t end) {
      sum_columns(dpre, begin, end, dbias.f32(), write);
    });
  }
}

void linear_backward_weight(Context& ctx, const Tensor& x, const Tensor& dy, const Tensor& dweight,
                            const Tensor& dbias, Write write) {
  if (!dweight) {
    if (dbias) {
      sum_columns(dy, 0, dy.cols(), dbias.f32(), write);
    }
    return;
  }
  matmul(ctx, {dy.cols(), x.cols(), dy.rows()}, transposed(dy), plain(x), plain(dweight), write,
         Rounding::kAsFastest, [&](const Tile& tile) {
           if (dbias && tile.col_begin == 0) {
             sum_columns(dy, tile.row_begin, tile.row_end, dbias.f32(), write);
           }
         });
}

}  // namespace carope::cpu
