#pragma once

#include "ops/sequence.h"

namespace carope {

/// The vectors of some heads, one a token: a part of a wider tensor, such as q in qkv, or a tensor
/// of its own. The elements of a vector lie side by side. It is a view of memory that somebody else
/// owns; all strides count elements.
struct Heads {
  void* data = nullptr;
  DType dtype = DType::kF32;
  std::int64_t count = 0;  // heads
  std::int64_t dim = 0;    // elements of a vector
  std::int64_t row_stride = 0;
  std::int64_t token_stride = 0;
  std::int64_t head_stride = 0;

  /// Heads [first, first + count) of a tensor [B, T, width] in which a head has `dim` elements.
  static Heads within(const Tensor& tensor, const Sequence& seq, std::int64_t first,
                      std::int64_t count, std::int64_t dim);

  explicit operator bool() const { return data != nullptr; }

  /// Head h of token t of batch row b.
  template <class T>
  T* at(std::int64_t b, std::int64_t t, std::int64_t h) const {
    return static_cast<T*>(data) + b * row_stride + t * token_stride + h * head_stride;
  }
};

/// q of H heads, and k and v of K heads, side by side in qkv [B, T, (H + 2 K) dim].
struct QkvHeads {
  Heads q, k, v;
};
QkvHeads split_qkv(const Tensor& qkv, const Sequence& seq, std::int64_t heads,
                   std::int64_t key_heads);

}  // namespace carope
