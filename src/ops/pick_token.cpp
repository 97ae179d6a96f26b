#include "ops/pick_token.h"

namespace carope {

namespace cuda {
decltype(carope::pick_token) pick_token;
}  // namespace cuda

void pick_token(Context& ctx, const TokenChoice& choice, const Tensor& logits, TokenPick* pick) {
  check<ShapeError>(
      choice.first >= 0 && choice.count > 0 && choice.first + choice.count <= logits.size(),
      "{} tokens from {} on cannot be picked by {} logits", choice.count, choice.first,
      logits.size());
  check<ShapeError>(ctx.device().kind == DeviceKind::kCuda, "only GPUs pick tokens themselves");
  cuda::pick_token(ctx, choice, logits, pick);
}

}  // namespace carope
