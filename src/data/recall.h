#pragma once

#include <cstdint>
#include <vector>

#include "core/tensor.h"

namespace carope {

/// A task that cannot be solved without knowing order: each row repeats a random pattern of its own
/// length, and only the repeated part is scored. To continue it, a model must find what followed
/// the last time.
struct RecallTask {
  std::int64_t vocabulary = 64;
  std::int64_t shortest = 8;  // tokens of a pattern
  std::int64_t longest = 24;
  std::uint64_t seed = 1;
};

/// One batch of the task, a function of (task, step) alone.
class RecallBatch {
 public:
  RecallBatch(const RecallTask& task, std::int64_t batch, std::int64_t length, std::uint64_t step);

  Tensor tokens() { return Tensor::of(tokens_, {batch_, length_}); }
  /// The next token, or -1 where it cannot be known.
  Tensor targets() { return Tensor::of(targets_, {batch_, length_}); }

 private:
  std::int64_t batch_, length_;
  std::vector<std::int32_t> tokens_, targets_;
};

}  // namespace carope
