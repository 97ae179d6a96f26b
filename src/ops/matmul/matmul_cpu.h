#pragma once

#include <algorithm>
#include <cstdint>

#include "core/parallel.h"
#include "ops/rounding.h"
#include "ops/write.h"

namespace carope::cpu {

/// A row-major matrix in memory, read as it is or transposed.
struct Matrix {
  float* data;
  std::int64_t stride;  // elements from one stored row to the next
  bool transposed = false;

  /// The part of the matrix, as read, that starts at (row, col).
  Matrix at(std::int64_t row, std::int64_t col) const {
    return {data + (transposed ? col * stride + row : row * stride + col), stride, transposed};
  }
};

struct MatmulShape {
  std::int64_t m;  // rows of c
  std::int64_t n;  // columns of c
  std::int64_t k;  // length of each dot product
};

/// c = alpha a b, or c += alpha a b, on the calling thread. `c` is never transposed.
void sgemm(const MatmulShape& shape, Matrix a, Matrix b, Matrix c, Write write, float alpha = 1.0F);

/// c = a b, or c += a b, where a row of c is the same bits whichever rows come with it. Neither `a`
/// nor `c` is transposed.
void sgemm_by_row(const MatmulShape& shape, Matrix a, Matrix b, Matrix c, Write write);

inline void sgemm(const MatmulShape& shape, Matrix a, Matrix b, Matrix c, Write write,
                  Rounding rounding) {
  rounding == Rounding::kByRow ? sgemm_by_row(shape, a, b, c, write) : sgemm(shape, a, b, c, write);
}

/// A rectangle of the result of a matrix product.
struct Tile {
  std::int64_t row_begin, row_end;
  std::int64_t col_begin, col_end;
};

/// How a product is cut into tasks. It depends on the shape alone, so results do not depend on
/// threads.
struct Tiling {
  std::int64_t rows, cols;

  static Tiling of(const MatmulShape& shape);
};

/// As sgemm, on all threads of the context; `epilogue(tile)` runs on each tile while it is in
/// cache.
template <class Epilogue>
void matmul(const Context& ctx, const MatmulShape& shape, Matrix a, Matrix b, Matrix c, Write write,
            Rounding rounding, const Epilogue& epilogue) {
  const Tiling tiling = Tiling::of(shape);
  const std::int64_t tiles_across = (shape.n + tiling.cols - 1) / tiling.cols;
  const std::int64_t tiles_down = (shape.m + tiling.rows - 1) / tiling.rows;
  parallel_for(ctx, tiles_down * tiles_across, [&](std::int64_t i) {
    const std::int64_t row = i / tiles_across * tiling.rows;
    const std::int64_t col = i % tiles_across * tiling.cols;
    const Tile tile{row, std::min(shape.m, row + tiling.rows), col,
                    std::min(shape.n, col + tiling.cols)};
    sgemm({tile.row_end - row, tile.col_end - col, shape.k}, a.at(row, 0), b.at(0, col),
          c.at(row, col), write, rounding);
    epilogue(tile);
  });
}

inline void matmul(const Context& ctx, const MatmulShape& shape, Matrix a, Matrix b, Matrix c,
                   Write write) {
  matmul(ctx, shape, a, b, c, write, Rounding::kAsFastest, [](const Tile&) {});
}

}  // namespace carope::cpu
