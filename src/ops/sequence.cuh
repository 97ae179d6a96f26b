#pragma once

#include <cstdint>

#include "ops/sequence.h"

namespace carope::cuda {

/// Where the tokens of a Sequence stand in their documents, as kernels see it.
struct Positions {
  const std::int32_t* document_start;  // or null
  std::int64_t length;
  std::int64_t offset;

  explicit Positions(const Sequence& seq)
      : document_start(static_cast<const std::int32_t*>(seq.document_start.raw())),
        length(seq.length),
        offset(seq.offset) {}

  /// Position of token n = b * length + t.
  __device__ std::int64_t of(std::int64_t n) const {
    return offset + n % length - (document_start != nullptr ? document_start[n] : 0);
  }
};

}  // namespace carope::cuda
