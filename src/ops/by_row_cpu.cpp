#include <array>
#include <atomic>
#include <cstring>
#include <utility>

#include "ops/matmul/matmul_cpu.h"
#include "ops/simd_cpu.h"
#ifdef __FMA__
#include <immintrin.h>
#endif

// A sum of floating-point products depends on its order. Here the order in which an element is
// summed follows from the number of its terms alone; blocks of rows and columns share loads, never
// sums. So what is left over at the edge of a block has the bits it would have inside.
namespace carope::cpu {
namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16;  // of a vector register
constexpr int kRows = 4;    // of a block: as many sums as leave registers for their factors
#elif defined(__AVX__)
constexpr int kLanes = 8;
constexpr int kRows = 2;
#else
constexpr int kLanes = 4;
constexpr int kRows = 2;
#endif
constexpr int kWide = 4;  // columns, or vectors of columns, of a block

using Lanes [[gnu::vector_size(kLanes * sizeof(float))]] = float;
using Quad [[gnu::vector_size(kWide * sizeof(float))]] = float;
template <int kValue>
using Constant = std::integral_constant<int, kValue>;

/// As multiply_add of every lane.
Lanes add_product(Lanes a, Lanes b, Lanes c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__FMA__)
  return _mm256_fmadd_ps(a, b, c);
#else
  for (int lane = 0; lane < kLanes; ++lane) {
    c[lane] = multiply_add(a[lane], b[lane], c[lane]);
  }
  return c;
#endif
}

/// The first `count` numbers, then zeros.
template <class Vector>
Vector load(const float* from, std::int64_t count) {
  Vector vector{};
  if (sizeof(float) * count == sizeof(Vector)) {  // a size that is known needs no call
    std::memcpy(&vector, from, sizeof(Vector));
  } else {
    std::memcpy(&vector, from, sizeof(float) * count);
  }
  return vector;
}
Lanes load(const float* from) { return load<Lanes>(from, kLanes); }

template <class Vector>
void store(const Vector& vector, float* to, std::int64_t count) {
  if (sizeof(float) * count == sizeof(Vector)) {
    std::memcpy(to, &vector, sizeof(Vector));
  } else {
    std::memcpy(to, &vector, sizeof(float) * count);
  }
}

/// Sums of neighbours: in each four, two of a's and then two of b's.
template <int... kIndex>
Lanes add_neighbours(Lanes a, Lanes b, std::integer_sequence<int, kIndex...> /*lanes*/) {
  constexpr auto left = [](int i) { return i / 4 * 4 + i % 2 * 2 + (i % 4 < 2 ? 0 : kLanes); };
  return __builtin_shufflevector(a, b, left(kIndex)...) +
         __builtin_shufflevector(a, b, left(kIndex) + 1 ...);
}
Lanes add_neighbours(Lanes a, Lanes b) {
  return add_neighbours(a, b, std::make_integer_sequence<int, kLanes>());
}

/// The sum of each vector's lanes, always in the same order.
Quad sums_of(const Lanes (&vectors)[kWide]) {
  const Lanes lanes = add_neighbours(add_neighbours(vectors[0], vectors[1]),
                                     add_neighbours(vectors[2], vectors[3]));
  Quad quads[kLanes / 4];
  std::memcpy(quads, &lanes, sizeof(lanes));
  for (int half = kLanes / 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) {
      quads[i] += quads[i + half];
    }
  }
  return quads[0];
}

/// Calls visit(rows, first) for blocks of kRows rows, a constant, and then row by row.
template <class Visit>
void for_each_block(std::int64_t begin, std::int64_t end, const Visit& visit) {
  for (; begin + kRows <= end; begin += kRows) {
    visit(Constant<kRows>(), begin);
  }
  for (; begin < end; ++begin) {
    visit(Constant<1>(), begin);
  }
}

/// Dot products of rows of a and four rows of b, over k.
template <int kHigh>
std::array<Quad, kHigh> dot_products(std::int64_t k, Matrix a, std::array<const float*, kWide> b) {
  Lanes sums[kHigh][kWide] = {};
  std::int64_t at = 0;
  for (; at + kLanes <= k; at += kLanes) {
    Lanes left[kHigh];
    Lanes right[kWide];
#pragma GCC unroll 4
    for (int row = 0; row < kHigh; ++row) {
      left[row] = load(a.data + row * a.stride + at);
    }
#pragma GCC unroll 4
    for (int col = 0; col < kWide; ++col) {
      right[col] = load(b[col] + at);
    }
    // Or else GCC reads each of them again for every product.
    std::atomic_signal_fence(std::memory_order_seq_cst);
#pragma GCC unroll 4
    for (int row = 0; row < kHigh; ++row) {
#pragma GCC unroll 4
      for (int col = 0; col < kWide; ++col) {
        sums[row][col] = add_product(left[row], right[col], sums[row][col]);
      }
    }
  }
  std::array<Quad, kHigh> dots;
#pragma GCC unroll 4
  for (int row = 0; row < kHigh; ++row) {
    dots[row] = sums_of(sums[row]);
  }
  for (; at < k; ++at) {
    for (int row = 0; row < kHigh; ++row) {
      for (int col = 0; col < kWide; ++col) {
        dots[row][col] = multiply_add(a.data[row * a.stride + at], b[col][at], dots[row][col]);
      }
    }
  }
  return dots;
}

/// c = a bᵀ, or c += a bᵀ, of b as it is stored.
void times_transposed(const MatmulShape& shape, const Matrix& a, const Matrix& b, const Matrix& c,
                      Write write) {
  constexpr std::int64_t kPanel = 64;  // rows of a that stay in cache while b passes
  for (std::int64_t panel = 0; panel < shape.m; panel += kPanel) {
    for (std::int64_t col = 0; col < shape.n; col += kWide) {
      const std::int64_t width = std::min<std::int64_t>(kWide, shape.n - col);
      std::array<const float*, kWide> right;
      for (int i = 0; i < kWide; ++i) {
        right[i] = b.data + (col + std::min<std::int64_t>(i, width - 1)) * b.stride;
      }
      for_each_block(panel, std::min(shape.m, panel + kPanel), [&](auto rows, std::int64_t first) {
        const auto dots = dot_products<rows>(shape.k, a.at(first, 0), right);
        for (int row = 0; row < rows; ++row) {
          float* to = c.at(first + row, col).data;
          const Quad old = write == Write::kAccumulate ? load<Quad>(to, width) : Quad{};
          store(dots[row] + old, to, width);
        }
      });
    }
  }
}

/// c = a b, or c += a b, for kHigh rows and kVectors vectors of columns, each `width` wide.
template <int kHigh, int kVectors>
void weighted_sums(std::int64_t k, Matrix a, Matrix b, Matrix c, Write write, std::int64_t width) {
  Lanes sums[kHigh][kVectors] = {};
  for (std::int64_t at = 0; at < k; ++at) {
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) {
      const auto right = load<Lanes>(b.data + at * b.stride + i * kLanes, width);
#pragma GCC unroll 4
      for (int row = 0; row < kHigh; ++row) {
        const Lanes left = Lanes{} + a.data[row * a.stride + at];
        sums[row][i] = add_product(left, right, sums[row][i]);
      }
    }
  }
#pragma GCC unroll 4
  for (int row = 0; row < kHigh; ++row) {
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) {
      float* to = c.data + row * c.stride + i * kLanes;
      const Lanes old = write == Write::kAccumulate ? load<Lanes>(to, width) : Lanes{};
      store(sums[row][i] + old, to, width);
    }
  }
}

/// c = a b, or c += a b.
void times(const MatmulShape& shape, const Matrix& a, const Matrix& b, const Matrix& c,
           Write write) {
  for_each_block(0, shape.m, [&](auto rows, std::int64_t row) {
    std::int64_t col = 0;
    const auto advance = [&](auto vectors, std::int64_t width) {
      for (; col + (vectors - 1) * kLanes + width <= shape.n; col += vectors * kLanes) {
        weighted_sums<rows, vectors>(shape.k, a.at(row, 0), b.at(0, col), c.at(row, col), write,
                                     width);
      }
    };
    advance(Constant<kWide>(), kLanes);
    advance(Constant<2>(), kLanes);
    advance(Constant<1>(), kLanes);
    if (col < shape.n) {
      advance(Constant<1>(), shape.n - col);
    }
  });
}

}  // namespace

void sgemm_by_row(const MatmulShape& shape, Matrix a, Matrix b, Matrix c, Write write) {
  if (!b.transposed) {
    times(shape, a, b, c, write);
    return;
  }
  constexpr std::int64_t kDepth = 1024;  // so much of four rows of b stays in the nearest cache
  for (std::int64_t at = 0; at < shape.k; at += kDepth) {
    times_transposed({shape.m, shape.n, std::min(kDepth, shape.k - at)}, a.at(0, at), b.at(at, 0),
                     c, at == 0 ? write : Write::kAccumulate);
  }
}

}  // namespace carope::cpu
