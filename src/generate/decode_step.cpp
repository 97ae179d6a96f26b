#include "generate/decode_step.h"

#include "core/cuda.h"

namespace carope {

DecodeStep::DecodeStep(const Context& ctx, const Gpt& model)
    : memory_(ctx.device(), sizeof(std::int32_t)),
      token_(memory_.data(), {{1, 1}, DType::kI32}, ctx.device()),
      pinned_token_(cuda::allocate_pinned(sizeof(std::int32_t))),
      pinned_logits_(cuda::allocate_pinned(static_cast<std::size_t>(model.config().vocabulary) *
                                           sizeof(float))),
      pinned_pick_(cuda::allocate_pinned(sizeof(TokenPick))) {}

std::span<const float> DecodeStep::read(Context& ctx, const Gpt& model, TokenId token,
                                        Activations& a, DecodeState& state) {
  const auto issue = [&] { download(ctx, issue_pass(ctx, model, a, state), pinned_logits_.get()); };
  run(ctx, model, reading_, issue, token, a.plan, state);
  return {static_cast<const float*>(pinned_logits_.get()),
          static_cast<std::size_t>(model.config().vocabulary)};
}

TokenId DecodeStep::next(Context& ctx, const Gpt& model, TokenId token, const Sampler& sampler,
                         Activations& a, DecodeState& state) {
  auto* pick = static_cast<TokenPick*>(pinned_pick_.get());
  const std::int64_t place = state.seen.front() + 1;  // of the token that is picked
  pick->uniform = sampler.uniform(place);
  const auto issue = [&] { pick_token(ctx, *choice_, issue_pass(ctx, model, a, state), pick); };
  run(ctx, model, picking_, issue, token, a.plan, state);
  if (pick->token < 0) {
    Sampler::refuse(static_cast<TokenId>(-1 - pick->token), place, pick->logit);
  }
  return static_cast<TokenId>(pick->token);
}

void DecodeStep::run(Context& ctx, const Gpt& model, Replayed& step,
                     const std::function<void()>& issue, TokenId token, const Plan& plan,
                     DecodeState& state) {
  auto* pinned = static_cast<std::int32_t*>(pinned_token_.get());
  *pinned = static_cast<std::int32_t>(token);
  check_tokens(Tensor(pinned, {{1}, DType::kI32}), model.config().vocabulary);
  if (step.graph.ready(ctx)) {
    model.check_room(state, 1);
    step.graph.launch(ctx);
    ++state.seen.front();
  } else if (step.ran && plan.rotated_by != RotatedBy::kHostFunctions) {
    step.graph.record(ctx, issue);
    step.graph.launch(ctx);
  } else {
    issue();
    step.ran = true;
  }
  wait(ctx);
}

Tensor DecodeStep::issue_pass(Context& ctx, const Gpt& model, Activations& a,
                              DecodeState& state) const {
  upload(ctx, pinned_token_.get(), token_);
  const Tensor logits = a.logits.slice_rows(0, 1);
  model.forward(ctx, {}, token_, a, &state);
  model.logits(ctx, a, logits);
  return logits.reshape({logits.size()});
}

}  // namespace carope
