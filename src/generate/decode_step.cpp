#include "generate/decode_step.h"

#include <algorithm>

#include "core/cuda.h"

namespace carope {

DecodeStep::DecodeStep(const Context& ctx, const Gpt& model)
    : memory_(ctx.device(), sizeof(NextToken)),
      next_(memory_.data(), {{3}, DType::kI32}, ctx.device()),
      pinned_next_(cuda::allocate_pinned(sizeof(NextToken))),
      pinned_logits_(cuda::allocate_pinned(static_cast<std::size_t>(model.config().vocabulary) *
                                           sizeof(float))),
      pinned_picks_(cuda::allocate_pinned(kMostAhead * sizeof(TokenPick))) {
  for (std::shared_ptr<void>& event : picked_) {
    event = cuda::make_event(ctx.device().index);
  }
}

std::span<const float> DecodeStep::read(Context& ctx, const Gpt& model, TokenId token,
                                        Activations& a, DecodeState& state) {
  check<Error>(ahead_ == 0, "a token cannot be read while others are on their way");
  plan(ctx, model, state);
  set_next(model, token, state);
  const auto issue = [&] {
    upload(ctx, pinned_next_.get(), next_);
    download(ctx, issue_pass(ctx, model, a, state), pinned_logits_.get());
  };
  run(ctx, model, reading_, issue, state);
  wait(ctx);
  return {static_cast<const float*>(pinned_logits_.get()),
          static_cast<std::size_t>(model.config().vocabulary)};
}

TokenId DecodeStep::next(Context& ctx, const Gpt& model, TokenId token, std::int64_t wanted,
                         const Sampler& sampler, Activations& a, DecodeState& state) {
  auto* picks = static_cast<TokenPick*>(pinned_picks_.get());
  const auto slot_of = [](std::int64_t place) {
    return static_cast<std::size_t>(place % kMostAhead);
  };
  plan(ctx, model, state);
  const std::int64_t place = state.seen - ahead_;  // of the token that is to be read
  if (ahead_ == 0) {
    set_next(model, token, state);
    upload(ctx, pinned_next_.get(), next_);
  } else {
    check<Error>(picks[slot_of(place - 1)].token == static_cast<std::int32_t>(token),
                 "token {} is not the one that is on its way", token);
  }
  const auto issue = [&] {
    const Tensor logits = issue_pass(ctx, model, a, state);
    pick_token(ctx, *choice_, logits.reshape({logits.size()}), next_, picks, kMostAhead);
  };
  // Only the one kernel does nothing after the end.
  const std::int64_t most = pass_ ? std::clamp<std::int64_t>(wanted, 1, kMostAhead) : 1;
  for (; ahead_ < most; ++ahead_) {
    const std::size_t slot = slot_of(state.seen);
    picks[slot].uniform = sampler.uniform(state.seen + 1);
    run(ctx, model, picking_, issue, state);
    cuda::record_event(ctx.stream(), picked_[slot].get());
  }
  cuda::wait_for_event(picked_[slot_of(place)].get());
  const TokenPick pick = picks[slot_of(place)];
  --ahead_;
  if (pick.token < 0 || pick.token == choice_->end) {
    state.seen -= ahead_;  // the GPU has read none of these
    ahead_ = 0;
  }
  if (pick.token < 0) {
    Sampler::refuse(static_cast<TokenId>(-1 - pick.token), place + 1, pick.logit);
  }
  return static_cast<TokenId>(pick.token);
}

void DecodeStep::plan(Context& ctx, const Gpt& model, DecodeState& state) {
  if (!planned_) {
    pass_ = model.plan_token_pass(ctx, state);
    planned_ = true;
  }
}

void DecodeStep::set_next(const Gpt& model, TokenId token, const DecodeState& state) const {
  auto* next = static_cast<NextToken*>(pinned_next_.get());
  *next = {.token = static_cast<std::int32_t>(token),
           .offset = static_cast<std::int32_t>(state.seen),
           .ended = 0};
  check_tokens(Tensor(&next->token, {{1}, DType::kI32}), model.config().vocabulary);
}

void DecodeStep::run(Context& ctx, const Gpt& model, Replayed& step,
                     const std::function<void()>& issue, DecodeState& state) {
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
}

Tensor DecodeStep::issue_pass(Context& ctx, const Gpt& model, Activations& a,
                              DecodeState& state) const {
  const Tensor rows = next_.reshape({3, 1});
  const Tensor token = rows.slice_rows(0, 1);
  const Sequence seq{.offset_on_device = rows.slice_rows(1, 2).reshape({1})};
  const Tensor ended = rows.slice_rows(2, 3).reshape({1});
  const Tensor logits = a.shared.logits.slice_rows(0, 1);
  if (pass_) {
    model.pass_token(ctx, seq, token, ended, a, state, *pass_, logits);
  } else {
    model.forward(ctx, seq, token, a, &state);
    model.logits(ctx, a, logits);
  }
  return logits;
}

}  // namespace carope
