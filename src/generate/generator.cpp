#include "generate/generator.h"

#include <algorithm>
#include <chrono>

#include "core/error.h"

namespace carope {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void check_room(const Gpt& model, std::int64_t prompt, const GenerateConfig& config) {
  check<ConfigError>(prompt >= 1,
                     "the prompt is empty and the tokenizer has no end of text to begin with; give "
                     "a prompt");
  check<ConfigError>(config.tokens >= 1 && config.tokens <= kHighestInteger - prompt,
                     "{} new tokens are not possible; ask for 1 to {}", config.tokens,
                     kHighestInteger - prompt);
  check<ConfigError>(config.chunk >= 1,
                     "a prompt cannot be read {} tokens at a time; give a chunk of 1 or more",
                     config.chunk);
  const auto bound = model.encoding().max_length;
  if (!bound || prompt + config.tokens <= *bound) {
    return;
  }
  throw ConfigError(fmt::format(
      "the prompt has {} tokens and {} more are asked for, but the encoding '{}' has "
      "{} positions; {}",
      prompt, config.tokens, model.config().encoding, *bound,
      prompt < *bound ? fmt::format("ask for at most {} new tokens", *bound - prompt)
                      : fmt::format("shorten the prompt to {} tokens or fewer", *bound - 1)));
}

}  // namespace

SequenceReader::SequenceReader(Context& ctx, const Gpt& model, std::int64_t capacity)
    : ctx_(ctx),
      model_(model),
      state_(model.plan_decoding(1, capacity)),
      single_(model.plan({.purpose = Purpose::kDecoding})) {
  if (ctx.device().kind == DeviceKind::kCuda) {
    step_.emplace(ctx, model);
  }
}

void SequenceReader::read(std::span<const TokenId> piece) {
  const auto length = static_cast<std::int64_t>(piece.size());
  last_ = 0;  // should this fail, there are no logits
  if (length == 1 && step_) {
    step_logits_ = step_->read(ctx_, model_, piece.front(), single_, state_);
    last_ = length;
    return;
  }
  if (length != 1 && (!piece_ || piece_->plan.pass.length != length)) {
    piece_.reset();  // before the next is planned: there is never room for both
    piece_.emplace(model_.plan({.length = length, .purpose = Purpose::kPrefill}));
  }
  Activations& activations = length == 1 ? single_ : *piece_;
  wait(ctx_);  // for the copy of the tokens that were there
  tokens_.assign(piece.begin(), piece.end());
  const Batch batch = device_batch_.upload(
      ctx_, {.seq = {.length = length}, .tokens = Tensor::of(tokens_, {1, length})},
      model_.config().vocabulary);
  model_.forward(ctx_, batch.seq, batch.tokens, activations, &state_);
  last_ = length;
}

std::span<const float> SequenceReader::logits() {
  check<Error>(last_ > 0, "nothing was read yet that a token could follow");
  if (last_ == 1 && step_) {
    return step_logits_;
  }
  const Activations& activations = last_ == 1 ? single_ : *piece_;
  const Tensor row = activations.logits.slice_rows(0, 1);
  model_.logits(ctx_, activations, row);
  logits_.resize(static_cast<std::size_t>(row.size()));
  copy_to_host(logits_.data(), row.raw(), row.bytes(), ctx_.device());
  return logits_;
}

void SequenceReader::pick_by(Sampler& sampler) {
  sampler_ = &sampler;
  const std::optional<TokenChoice> choice = sampler.choice();
  if (choice && step_) {
    step_->pick_by(*choice);
  }
}

TokenId SequenceReader::next(TokenId token) {
  check<Error>(sampler_ != nullptr, "pick_by() has not said how tokens are picked");
  if (step_ && step_->picks()) {
    last_ = 0;  // the logits stay on the device
    return step_->next(ctx_, model_, token, *sampler_, single_, state_);
  }
  read({&token, 1});
  return sampler_->pick(logits(), seen());
}

Generated generate(Context& ctx, Gpt& model, std::span<const TokenId> prompt,
                   const GenerateConfig& config, const GenerateObserver& observer,
                   const std::atomic<bool>& stop) {
  const auto length = static_cast<std::int64_t>(prompt.size());
  check_room(model, length, config);
  model.serve(length + config.tokens);
  Sampler sampler(config.sampler, config.allowed);
  SequenceReader reader(ctx, model, length + config.tokens);
  reader.pick_by(sampler);
  Generated result;

  auto start = Clock::now();
  while (reader.seen() < length && !stop) {
    const auto rest = prompt.subspan(static_cast<std::size_t>(reader.seen()));
    reader.read(rest.first(std::min(static_cast<std::size_t>(config.chunk), rest.size())));
    observer.read(reader.seen());
  }
  result.prompt_seconds = seconds_since(start);
  if (stop) {
    return result;
  }
  const std::span<const float> logits = reader.logits();
  result.prompt_seconds = seconds_since(start);

  start = Clock::now();
  for (std::int64_t i = 0; i < config.tokens && !stop; ++i) {
    const TokenId token = i == 0 ? sampler.pick(logits, length) : reader.next(result.tokens.back());
    result.steps = i;
    result.ended = token == config.end;
    if (result.ended) {
      break;
    }
    result.tokens.push_back(token);
    observer.token(token);
  }
  result.step_seconds = seconds_since(start);
  return result;
}

}  // namespace carope
