#pragma once

#include <cstdint>

#include "core/tensor.h"

namespace carope {

/// How a batch of tokens is laid out along time. Every operation that knows about position takes
/// one.
struct Sequence {
  std::int64_t batch = 1;   // B
  std::int64_t length = 1;  // T
  /// [B, T] i32: index of the first token of each token's document; or empty: a row is one
  /// document.
  Tensor document_start{};
  /// [B] i32: how many tokens of each row earlier calls have seen; or empty: none. It lies where
  /// the operations run, so that a recorded step can be run at other offsets.
  Tensor offsets{};

  std::int64_t tokens() const { return batch * length; }

  // These read the CPU's memory.
  /// Index within row `b` of the first token that token `t` may see.
  std::int64_t start_of(std::int64_t b, std::int64_t t) const {
    return document_start ? document_start.data<std::int32_t>()[b * length + t] : 0;
  }
  std::int64_t offset_of(std::int64_t b) const {
    return offsets ? offsets.data<std::int32_t>()[b] : 0;
  }
  /// Position of a token within its document, from 0.
  std::int64_t position_of(std::int64_t b, std::int64_t t) const {
    return offset_of(b) + t - start_of(b, t);
  }
};

/// Throws unless every row's documents are contiguous and each token names the first of its own.
void check_documents(const Sequence& seq);

/// Throws unless the sequence has the right shape and `tensor` has one row a token.
void check_sequence(const Sequence& seq, const Tensor& tensor, const char* name);

/// How many tokens the longest row has, with those that earlier calls have seen. Offsets on a GPU
/// count as none: whoever wrote them there has checked them.
std::int64_t longest_row(const Sequence& seq);

}  // namespace carope
