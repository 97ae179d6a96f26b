#include "generate/decode_step.h"

#include "core/cuda.h"

namespace carope {

DecodeStep::DecodeStep(const Context& ctx, const Gpt& model)
    : memory_(ctx.device(), sizeof(Input)),
      input_(memory_.data(), {{2}, DType::kI32}, ctx.device()),
      pinned_input_(cuda::allocate_pinned(sizeof(Input))),
      pinned_logits_(cuda::allocate_pinned(static_cast<std::size_t>(model.config().vocabulary) *
                                           sizeof(float))) {}

void DecodeStep::weigh(const Sampler::Weighed& weighed) {
  weighed_ = weighed;
  const TensorSpec spec{{weight_blocks(static_cast<std::int64_t>(weighed.count)), 2}, DType::kF64};
  weight_memory_ = Memory(memory_.device(), spec.bytes());
  weights_ = {weight_memory_.data(), spec, memory_.device()};
  pinned_weights_ = cuda::allocate_pinned(spec.bytes());
}

std::span<const BlockWeight> DecodeStep::weights() const {
  static_assert(sizeof(BlockWeight) == 2 * sizeof(double));
  return {static_cast<const BlockWeight*>(pinned_weights_.get()),
          weighed_ ? static_cast<std::size_t>(weights_.rows()) : 0};
}

std::span<const float> DecodeStep::read(Context& ctx, const Gpt& model, TokenId token,
                                        Activations& a, DecodeState& state) {
  auto* input = static_cast<Input*>(pinned_input_.get());
  *input = {.token = static_cast<std::int32_t>(token),
            .offset = static_cast<std::int32_t>(state.seen)};
  check_tokens(Tensor(&input->token, {{1}, DType::kI32}), model.config().vocabulary);
  if (graph_.ready(ctx)) {
    model.check_room(state, 1);
    graph_.launch(ctx);
    ++state.seen;
  } else if (ran_) {
    graph_.record(ctx, [&] { issue(ctx, model, a, state); });
    graph_.launch(ctx);
  } else {
    pass_ = model.plan_token_pass(ctx, state);
    issue(ctx, model, a, state);
    ran_ = true;
  }
  wait(ctx);
  return {static_cast<const float*>(pinned_logits_.get()),
          static_cast<std::size_t>(model.config().vocabulary)};
}

void DecodeStep::issue(Context& ctx, const Gpt& model, Activations& a, DecodeState& state) const {
  upload(ctx, pinned_input_.get(), input_);
  const Tensor rows = input_.reshape({2, 1});
  const Tensor token = rows.slice_rows(0, 1);
  const Sequence seq{.offset_on_device = rows.slice_rows(1, 2).reshape({1})};
  const Tensor logits = a.shared.logits.slice_rows(0, 1);
  if (pass_) {
    model.pass_token(ctx, seq, token, a, state, *pass_, logits);
  } else {
    model.forward(ctx, seq, token, a, &state);
    model.logits(ctx, a, logits);
  }
  if (weighed_) {
    const auto first = static_cast<std::int64_t>(weighed_->first);
    const auto count = static_cast<std::int64_t>(weighed_->count);
    const Tensor row = logits.reshape({logits.size(), 1}).slice_rows(first, first + count);
    block_weights(ctx, row.reshape({count}), weighed_->temperature, weights_);
    download(ctx, weights_, pinned_weights_.get());
  }
  download(ctx, logits, pinned_logits_.get());
}

}  // namespace carope
