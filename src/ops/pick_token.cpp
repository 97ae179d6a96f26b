#include "ops/pick_token.h"

namespace carope {

namespace cuda {
decltype(carope::pick_token) pick_token;
}  // namespace cuda

void pick_token(Context& ctx, const TokenChoice& choice, const Tensor& logits, const Tensor& next,
                TokenPick* picks, std::int64_t slots) {
  check_shape(next, {3}, "the next token");
  check<ShapeError>(choice.first >= 0 && choice.count > 0 &&
                        choice.first + choice.count <= logits.size() && slots > 0,
                    "{} tokens from {} on cannot be picked by {} logits", choice.count,
                    choice.first, logits.size());
  check<ShapeError>(ctx.device().kind == DeviceKind::kCuda, "only GPUs pick tokens themselves");
  cuda::pick_token(ctx, choice, logits, next, picks, slots);
}

}  // namespace carope
