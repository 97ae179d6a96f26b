#pragma once

#include <cstdint>

#include "core/tensor.h"

namespace carope {

/// How a batch of tokens is laid out along time. Every operation that knows about position takes
/// one.
struct Sequence {
  std::int64_t batch = 1;   // B
  std::int64_t length = 1;  // T
  Tensor
      document_start{};  // [B, T] i32: index of the first token of each token's document; or empty
  std::int64_t offset = 0;  // tokens of the same document that earlier calls have seen (decoding)
  /// [1] i32: the offset again, where the kernels of a single token are recorded to be run at
  /// others; or empty.
  Tensor offset_on_device{};

  std::int64_t tokens() const { return batch * length; }

  /// Index within row `b` of the first token that token `t` may see.
  std::int64_t start_of(std::int64_t b, std::int64_t t) const {
    return document_start ? document_start.data<std::int32_t>()[b * length + t] : 0;
  }
  /// Position of a token within its document, from 0.
  std::int64_t position_of(std::int64_t b, std::int64_t t) const {
    return offset + t - start_of(b, t);
  }
};

/// Throws unless every row's documents are contiguous and each token names the first of its own.
void check_documents(const Sequence& seq);

/// Throws unless the sequence has the right shape and `tensor` has one row a token.
void check_sequence(const Sequence& seq, const Tensor& tensor, const char* name);

}  // namespace carope
