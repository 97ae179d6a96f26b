#pragma once

#include <vector>

#include "core/arena.h"
#include "core/context.h"
#include "ops/sequence.h"

namespace carope {

/// Tokens to learn from or to score.
struct Batch {
  Sequence seq;
  Tensor tokens;     // [B, T] i32
  Tensor targets{};  // [B, T] i32: the token that follows each; negative ones are not counted
  /// How many targets of each row are counted, where they are on a device that the CPU cannot read;
  /// or empty.
  std::vector<std::int64_t> counts{};

  /// How many targets are counted.
  std::int64_t counted() const;
  /// Rows [row, row + rows).
  Batch slice(std::int64_t row, std::int64_t rows) const;
};

/// Throws if a token, on the CPU, is outside the vocabulary.
void check_tokens(const Tensor& tokens, std::int64_t vocabulary);

/// How many targets of each row are counted; they must be on the CPU.
std::vector<std::int64_t> count_targets(const Tensor& targets);

/// Room on a device for batches that come from the CPU.
class DeviceBatch {
 public:
  /// The batch where the context computes: itself on the CPU, otherwise a copy that is valid until
  /// the next call. Throws if a token is outside the vocabulary: kernels do not look.
  Batch upload(Context& ctx, const Batch& host, std::int64_t vocabulary);

 private:
  Batch room_{};
  Arena arena_;
};

}  // namespace carope
