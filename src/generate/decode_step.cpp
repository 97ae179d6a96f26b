#include "generate/decode_step.h"

#include "core/cuda.h"

namespace carope {

DecodeStep::DecodeStep(const Context& ctx, const Gpt& model)
    : memory_(ctx.device(), sizeof(Input)),
      input_(memory_.data(), {{2}, DType::kI32}, ctx.device()),
      pinned_input_(cuda::allocate_pinned(sizeof(Input))),
      pinned_logits_(cuda::allocate_pinned(static_cast<std::size_t>(model.config().vocabulary) *
                                           sizeof(float))),
      pinned_pick_(cuda::allocate_pinned(sizeof(TokenPick))) {}

std::span<const float> DecodeStep::read(Context& ctx, const Gpt& model, TokenId token,
                                        Activations& a, DecodeState& state) {
  const auto issue = [&] { download(ctx, issue_pass(ctx, model, a, state), pinned_logits_.get()); };
  run(ctx, model, reading_, issue, token, state);
  return {static_cast<const float*>(pinned_logits_.get()),
          static_cast<std::size_t>(model.config().vocabulary)};
}

TokenId DecodeStep::next(Context& ctx, const Gpt& model, TokenId token, const Sampler& sampler,
                         Activations& a, DecodeState& state) {
  auto* pick = static_cast<TokenPick*>(pinned_pick_.get());
  const std::int64_t place = state.seen + 1;  // of the token that is picked
  pick->uniform = sampler.uniform(place);
  const auto issue = [&] { pick_token(ctx, *choice_, issue_pass(ctx, model, a, state), pick); };
  run(ctx, model, picking_, issue, token, state);
  if (pick->token < 0) {
    Sampler::refuse(static_cast<TokenId>(-1 - pick->token), place, pick->logit);
  }
  return static_cast<TokenId>(pick->token);
}

void DecodeStep::run(Context& ctx, const Gpt& model, Replayed& step,
                     const std::function<void()>& issue, TokenId token, DecodeState& state) {
  auto* input = static_cast<Input*>(pinned_input_.get());
  *input = {.token = static_cast<std::int32_t>(token),
            .offset = static_cast<std::int32_t>(state.seen)};
  check_tokens(Tensor(&input->token, {{1}, DType::kI32}), model.config().vocabulary);
  if (step.graph.ready(ctx)) {
    model.check_room(state, 1);
    step.graph.launch(ctx);
    ++state.seen;
  } else if (step.ran) {
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
  upload(ctx, pinned_input_.get(), input_);
  const Tensor rows = input_.reshape({2, 1});
  const Sequence seq{.offset_on_device = rows.slice_rows(1, 2).reshape({1})};
  const Tensor logits = a.shared.logits.slice_rows(0, 1);
  model.forward(ctx, seq, rows.slice_rows(0, 1), a, &state);
  model.logits(ctx, a, logits);
  return logits.reshape({logits.size()});
}

}  // namespace carope
