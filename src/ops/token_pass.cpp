#include "ops/token_pass.h"

namespace carope {

namespace cuda {
decltype(carope::make_token_pass) make_token_pass;
}  // namespace cuda

std::unique_ptr<TokenPass> make_token_pass(Context& ctx, const TokenModel& model) {
  const bool wanted = ctx.state<TokenKernels>().use == TokenKernels::Use::kFastest;
  return wanted && ctx.device().kind == DeviceKind::kCuda ? cuda::make_token_pass(ctx, model)
                                                          : nullptr;
}

}  // namespace carope
