#pragma once

#include "core/context.h"

// The next token, picked on the device that has its logits: so that the host need not see one token
// before it launches what reads it.
namespace carope {

/// Which tokens may be picked, and how.
struct TokenChoice {
  std::int64_t first = 0, count = 0;  // the ids that may be
  double temperature = 1.0;           // 0: always the highest logit; of equal ones the lowest id's
  std::int64_t end = -1;              // the token after which nothing is picked or read any more
};

/// The token that is read next, as the device has it: [3] i32.
struct NextToken {
  std::int32_t token;
  std::int32_t offset;  // its place in the sequence
  std::int32_t ended;   // not 0: nothing is read or picked
};

/// A pick, in pinned memory of the host.
struct TokenPick {
  double uniform;      // is given: a number in [0, 1) that decides
  std::int32_t token;  // or, where a logit is not finite, -1 - the first such id
  float logit;         // of this id
};

/// Picks the token after `next` by its logits [V] f32: next is that token then. The pick is number
/// offset % slots of `picks`. On a GPU only.
void pick_token(Context& ctx, const TokenChoice& choice, const Tensor& logits, const Tensor& next,
                TokenPick* picks, std::int64_t slots);

}  // namespace carope
