#pragma once

#include <cstdint>

#include "ops/sequence.h"

namespace carope::cuda {

/// Where the tokens of a Sequence stand in their documents, as kernels see it.
struct Positions {
  const std::int32_t* document_start;  // [B, T] or null
  const std::int32_t* offsets;         // [B] or null
  int length;                          // T

  explicit Positions(const Sequence& seq)
      : document_start(static_cast<const std::int32_t*>(seq.document_start.raw())),
        offsets(static_cast<const std::int32_t*>(seq.offsets.raw())),
        length(static_cast<int>(seq.length)) {}

  __device__ int offset(int row) const { return offsets != nullptr ? offsets[row] : 0; }
  /// Position of token t of a row.
  __device__ int of(int row, int t) const {
    const std::int64_t n = static_cast<std::int64_t>(row) * length + t;
    return offset(row) + t - (document_start != nullptr ? document_start[n] : 0);
  }
  /// Position of token n = row * length + t.
  __device__ std::int64_t of(std::int64_t n) const {
    const auto row = static_cast<int>(n / length);
    return of(row, static_cast<int>(n - static_cast<std::int64_t>(row) * length));
  }
};

}  // namespace carope::cuda
