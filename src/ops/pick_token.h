#pragma once

#include "core/context.h"

// The next token, picked on the device that has its logits: the host reads one number, not V.
namespace carope {

/// Which tokens may be picked, and how.
struct TokenChoice {
  std::int64_t first = 0, count = 0;  // the ids that may be
  double temperature = 1.0;           // 0: always the highest logit; of equal ones the lowest id's
};

/// A pick, in pinned memory of the host.
struct TokenPick {
  double uniform;      // is given: a number in [0, 1) that decides
  std::int32_t token;  // or, where a logit is not finite, -1 - the first such id
  float logit;         // of this id
};

/// Picks a token by logits [V] f32. On a GPU only.
void pick_token(Context& ctx, const TokenChoice& choice, const Tensor& logits, TokenPick* pick);

}  // namespace carope
