#pragma once

#include <cstdint>

#include "ops/sequence.h"

namespace carope::cuda {

/// How many tokens came before those of a Sequence, as kernels see it.
struct Offset {
  std::int64_t known;
  const std::int32_t* on_device;  // counts where it is given

  explicit Offset(const Sequence& seq)
      : known(seq.offset),
        on_device(seq.offset_on_device ? seq.offset_on_device.data<std::int32_t>() : nullptr) {}

  __device__ std::int64_t value() const { return on_device != nullptr ? *on_device : known; }
};

/// Where the tokens of a Sequence stand in their documents, as kernels see it.
struct Positions {
  const std::int32_t* document_start;  // or null
  std::int64_t length;
  Offset offset;

  explicit Positions(const Sequence& seq)
      : document_start(static_cast<const std::int32_t*>(seq.document_start.raw())),
        length(seq.length),
        offset(seq) {}

  /// Position of token n = b * length + t.
  __device__ std::int64_t of(std::int64_t n) const {
    return offset.value() + n % length - (document_start != nullptr ? document_start[n] : 0);
  }
};

}  // namespace carope::cuda
