#include "model/gpt.h"

#include <algorithm>

#include "core/parallel.h"
#include "core/random.h"
#include "ops/cross_entropy.h"
#include "ops/embedding.h"
#include "ops/sum.h"

namespace carope {
namespace {

/// FNV-1a.
std::uint64_t hash(const std::string& text) {
  std::uint64_t value = 0xCBF29CE484222325;
  for (const char c : text) {
    value = (value ^ static_cast<unsigned char>(c)) * 0x100000001B3;
  }
  return value;
}

/// A sequence that comes in pieces must not show where it was cut.
Rounding rounding_with(const DecodeState* state) {
  return state == nullptr ? Rounding::kAsFastest : Rounding::kByRow;
}

/// The factor of a loss's sum that makes it a mean.
double mean_scale(const Batch& batch) {
  return 1.0 / static_cast<double>(std::max<std::int64_t>(batch.counted(), 1));
}

}  // namespace

Gpt::Gpt(const GptConfig& config, Device device, DType compute, const Sharding& sharding)
    : config_(config), device_(device), compute_(compute) {
  config_.validate();
  check<ConfigError>(compute == DType::kF32 || device.kind == DeviceKind::kCuda,
                     "a model computes in {} on a GPU only; use fp32 on the CPU",
                     to_string(compute));
  encoding_ =
      make_encoding(config.encoding, config.shape(), {device, compute}, config.encoding_options);
  const auto bound = encoding_->max_length();
  check<ConfigError>(
      !bound || config.length <= *bound,
      "model.length = {} is past the {} positions of the encoding '{}'; give at most {}",
      config.length, bound.value_or(0), config.encoding, bound.value_or(0));

  std::vector<ParameterSpec> specs;
  lay_out_weights(config_, *encoding_, [&](const ParameterSpec& spec) {
    specs.push_back(spec);
    return Tensor{};
  });
  memory_ = ParameterMemory(specs, device, compute, sharding);
  const auto lay_out = [&](const auto& tensor_of) {
    auto parameter = parameters().begin();
    return lay_out_weights(config_, *encoding_,
                           [&](const ParameterSpec&) { return tensor_of(*parameter++); });
  };
  weights_ = lay_out([](const Parameter& p) { return p.rounded ? p.rounded : p.value; });
  gradients_ = lay_out([](const Parameter& p) { return p.gradient; });
  attention_ = {.heads = config.heads, .slopes = encoding_->attention_slopes()};
}

const Parameter& Gpt::parameter(const std::string& name) const {
  for (const Parameter& parameter : parameters()) {
    if (parameter.spec.name == name) {
      return parameter;
    }
  }
  throw Error(fmt::format("the model has no parameter '{}'", name));
}

std::int64_t Gpt::parameter_count() const {
  std::int64_t count = 0;
  for (const Parameter& parameter : parameters()) {
    count += parameter.spec.shape.size();
  }
  return count;
}

void Gpt::initialise(std::uint64_t seed) {
  constexpr std::int64_t kBlock = 1 << 16;
  const Context host = Context::cpu();
  for (std::size_t number = 0; number < parameters().size(); ++number) {
    const ParameterSpec& spec = parameters()[number].spec;
    const Philox random(seed, hash(spec.name));
    const Init init = spec.init;
    std::vector<float> values(static_cast<std::size_t>(spec.shape.size()));
    const auto fill = [&](std::int64_t begin, std::int64_t end) {
      for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
        values[i] = static_cast<float>(
            init.mean + (init.deviation > 0.0 ? init.deviation * random.normal(i) : 0.0));
      }
    };
    // Each number is a function of its place, on any number of threads.
    parallel_blocks(host, spec.shape.size(), kBlock, fill);
    memory_.set(number, values);
  }
}

double Gpt::training_flops_per_token(std::int64_t length) const {
  const auto width = static_cast<double>(config_.width);
  double layer_weights = 12.0 * width * width;
  for (const ParameterSpec& spec : encoding_->layer_parameters()) {
    layer_weights += spec.shape.rank() == 2 ? static_cast<double>(spec.shape.size()) : 0.0;
  }
  // Scores and values: each query meets (length + 1) / 2 keys on average.
  const double attention = width * (static_cast<double>(length) + 1.0);
  const double multiply_adds = static_cast<double>(config_.layers) * (layer_weights + attention) +
                               static_cast<double>(config_.vocabulary) * width;
  return 3.0 * 2.0 * multiply_adds;
}

Activations Gpt::plan(std::int64_t batch, std::int64_t length, Purpose purpose) const {
  check<ConfigError>(batch >= 1 && length >= 1, "a batch of {} x {} tokens is not possible", batch,
                     length);
  return {config_, *encoding_, batch, length, purpose, device_, compute_};
}

DecodeState Gpt::plan_decoding(std::int64_t batch, std::int64_t capacity) const {
  check<ConfigError>(batch >= 1 && capacity >= 1, "{} sequences of {} tokens cannot be decoded",
                     batch, capacity);
  return {config_, *encoding_, batch, capacity, device_, compute_};
}

LayerView Gpt::view(std::size_t layer, const Activations& a, DecodeState* state) const {
  return {.index = static_cast<std::int64_t>(layer),
          .weights = weights_.blocks[layer].position,
          .hidden = a.blocks[layer].normed_in.y,
          .embedding = a.embedding,
          .saved = a.blocks[layer].position,
          .workspace = a.shared.position,
          .state = state == nullptr ? std::span<const Tensor>{} : state->layers[layer].position};
}

void Gpt::check_positions(std::int64_t length) const {
  const auto bound = encoding_->max_length();
  check<ConfigError>(
      !bound || length <= *bound,
      "a sequence of {} tokens is past the {} positions of the encoding '{}'; use at most {}",
      length, bound.value_or(0), config_.encoding, bound.value_or(0));
}

void Gpt::check_room(const DecodeState& state, std::int64_t tokens) const {
  const std::int64_t capacity = state.layers.front().cache.keys.dim(1);
  check<ConfigError>(state.seen + tokens <= capacity,
                     "{} tokens do not fit a decode state of {}; make it longer",
                     state.seen + tokens, capacity);
  check_positions(state.seen + tokens);
}

Sequence Gpt::checked(const Sequence& given, const Activations& a, const DecodeState* state) const {
  check<ShapeError>(given.batch == a.batch && given.length == a.length,
                    "activations were planned for {} x {} tokens, not {} x {}", a.batch, a.length,
                    given.batch, given.length);
  check<ShapeError>(given.offset == 0, "offset = {}: a sequence continues through a decode state",
                    given.offset);
  check_documents(given);
  Sequence seq = given;
  if (state != nullptr) {
    seq.offset = state->seen;
    const Tensor& keys = state->layers.front().cache.keys;
    check<ShapeError>(keys.dim(0) == seq.batch, "the decode state is for {} sequences, not {}",
                      keys.dim(0), seq.batch);
    check<ShapeError>(!seq.document_start, "packed documents cannot be decoded");
    check_room(*state, seq.length);
  } else {
    check_positions(seq.length);
  }
  return seq;
}

void Gpt::forward(Context& ctx, const Sequence& given, const Tensor& tokens, Activations& a,
                  DecodeState* state) const {
  const Sequence seq = checked(given, a, state);
  embedding(ctx, tokens, weights_.embedding, a.embedding);
  encoding_->add_to_embedding(ctx, seq, weights_.position, a.embedding);
  for (std::size_t layer = 0; layer < a.blocks.size(); ++layer) {
    block_forward(ctx, seq, layer, a, state);
  }
  layer_norm(ctx, a.final_residual, weights_.final_norm, a.final_normed);
  if (state != nullptr) {
    state->seen += seq.length;
  }
}

void Gpt::block_forward(Context& ctx, const Sequence& seq, std::size_t layer, Activations& a,
                        DecodeState* state) const {
  const BlockWeights& w = weights_.blocks[layer];
  const BlockActivations& b = a.blocks[layer];
  const LayerView position = view(layer, a, state);
  const bool last = layer + 1 == a.blocks.size();
  const Tensor& result = last ? a.final_residual : a.blocks[layer + 1].residual;
  const Rounding rounding = rounding_with(state);

  layer_norm(ctx, b.residual, w.attention_norm, b.normed_in, encoding_->gate(position));
  linear(ctx, b.normed_in.y, w.qkv.weight, w.qkv.bias, b.qkv, rounding);
  if (state == nullptr) {
    attend(ctx, seq, position, b);
  } else {
    encoding_->rotate(ctx, seq, position, b.qkv);
    attention_cached(ctx, attention_, seq, b.qkv, state->layers[layer].cache, b.attended);
  }
  linear_add(ctx, b.attended, w.attention_out.weight, w.attention_out.bias, b.residual,
             b.residual_mid, rounding);

  layer_norm(ctx, b.residual_mid, w.mlp_norm, b.normed_mid);
  linear_gelu(ctx, b.normed_mid.y, w.mlp_in.weight, w.mlp_in.bias, b.mlp_gelu, b.mlp_hidden,
              rounding);
  linear_add(ctx, b.mlp_hidden, w.mlp_out.weight, w.mlp_out.bias, b.residual_mid, result, rounding);
}

void Gpt::attend(Context& ctx, const Sequence& seq, const LayerView& position,
                 const BlockActivations& b) const {
  const std::optional<AttentionInput> input = encoding_->attention_input(position);
  if (input && attention_rotates(ctx, attention_, seq, b.qkv)) {
    encoding_->prepare_attention(ctx, position);
    if (attention_through(ctx, attention_, seq, *input, b.qkv, b.attended, b.logsumexp)) {
      return;
    }
  }
  encoding_->rotate(ctx, seq, position, b.qkv);
  attention(ctx, attention_, seq, b.qkv, b.attended, b.logsumexp);
}

Tensor Gpt::gate_logits(std::size_t layer, const Activations& a) const {
  check<ShapeError>(a.purpose != Purpose::kInference,
                    "the layers' gates need activations planned for training");
  return encoding_->gate_logits(view(layer, a, nullptr));
}

void Gpt::logits(Context& ctx, const Activations& a, const Tensor& logits) const {
  const Tensor& hidden = a.final_normed.y;
  linear(ctx, hidden.slice_rows(hidden.rows() - logits.rows(), hidden.rows()), weights_.embedding,
         {}, logits, Rounding::kByRow);
}

double Gpt::loss(Context& ctx, const Batch& batch, Activations& a, DecodeState* state) const {
  forward(ctx, batch.seq, batch.tokens, a, state);
  classifier_loss(ctx, {.hidden = a.final_normed.y,
                        .weight = weights_.embedding,
                        .targets = batch.targets,
                        .losses = a.losses,
                        .logits = a.shared.logits,
                        .rounding = rounding_with(state)});
  return read_mean_loss(ctx, batch, a);
}

double Gpt::read_mean_loss(Context& ctx, const Batch& batch, Activations& a) const {
  carope::clear(ctx, a.total_loss);
  add_sum(ctx, a.losses, mean_scale(batch), a.total_loss);
  double loss = 0.0;
  copy_to_host(&loss, a.total_loss.raw(), sizeof(loss), device_);
  return loss;
}

double Gpt::loss_and_gradients(Context& ctx, const Batch& batch, Activations& a, Write write,
                               double scale) {
  gradients(ctx, batch, a, write, scale);
  return read_mean_loss(ctx, batch, a);
}

void Gpt::gradients(Context& ctx, const Batch& batch, Activations& a, Write write, double scale,
                    const BlockFinished& finished) {
  check<ShapeError>(a.purpose != Purpose::kInference,
                    "gradients need activations planned for training");
  const double mean = scale * mean_scale(batch);
  forward(ctx, batch.seq, batch.tokens, a);
  classifier_loss_backward(ctx,
                           {.hidden = a.final_normed.y,
                            .weight = weights_.embedding,
                            .targets = batch.targets,
                            .losses = a.losses,
                            .logits = a.shared.logits},
                           {.dhidden = a.shared.dnormed,
                            .dweight = gradients_.embedding,
                            .scale = static_cast<float>(mean),
                            .write = write});
  if (write == Write::kOverwrite) {
    carope::clear(ctx, a.total_loss);
  }
  add_sum(ctx, a.losses, mean, a.total_loss);
  backward(ctx, batch, a, write, finished);
}

void Gpt::backward(Context& ctx, const Batch& batch, Activations& a, Write write,
                   const BlockFinished& finished) {
  SharedActivations& s = a.shared;
  const auto tell = [&](std::int64_t block) {
    if (finished) {
      finished(block);
    }
  };
  carope::clear(ctx, s.dresidual);
  if (s.dembedding) {
    carope::clear(ctx, s.dembedding);
  }
  norm_backward(ctx, {.dy = s.dnormed,
                      .x = a.final_residual,
                      .normed = a.final_normed,
                      .gain = weights_.final_norm.gain,
                      .dx = s.dresidual,
                      .dweights = gradients_.final_norm,
                      .write = write,
                      .dx_sum = gradients_.blocks.back().mlp_out.bias});
  for (std::size_t layer = a.blocks.size(); layer-- > 0;) {
    block_backward(ctx, batch.seq, layer, a, write);
    tell(static_cast<std::int64_t>(layer));
  }
  encoding_->add_to_embedding_backward(ctx, batch.seq, s.dresidual, gradients_.position, write);
  embedding_backward(ctx, batch.tokens, s.dresidual, gradients_.embedding);
  if (s.dembedding) {
    embedding_backward(ctx, batch.tokens, s.dembedding, gradients_.embedding);
  }
  tell(-1);
}

void Gpt::block_backward(Context& ctx, const Sequence& seq, std::size_t layer, Activations& a,
                         Write write) {
  const BlockWeights& w = weights_.blocks[layer];
  const BlockWeights& dw = gradients_.blocks[layer];
  const BlockActivations& b = a.blocks[layer];
  const SharedActivations& s = a.shared;  // s.dresidual is the gradient of both branches' sums
  const bool again = a.purpose == Purpose::kRecomputing;  // what the blocks did not keep

  if (again) {
    gelu(ctx, b.mlp_gelu.values, b.mlp_hidden);
  }
  // The norm before has summed the bias's gradient while it made dresidual.
  linear_backward_weight(ctx, b.mlp_hidden, s.dresidual, dw.mlp_out.weight, {}, write);
  linear_backward_gelu(ctx, s.dresidual, w.mlp_out.weight, b.mlp_gelu, s.dmlp, dw.mlp_in.bias,
                       write);
  if (again) {
    layer_norm(ctx, b.residual_mid, w.mlp_norm, b.normed_mid);
  }
  linear_backward_weight(ctx, b.normed_mid.y, s.dmlp, dw.mlp_in.weight, {}, write);
  linear_backward_input(ctx, s.dmlp, w.mlp_in.weight, s.dnormed, Write::kOverwrite);
  norm_backward(ctx, {.dy = s.dnormed,
                      .x = b.residual_mid,
                      .normed = b.normed_mid,
                      .gain = w.mlp_norm.gain,
                      .dx = s.dresidual,
                      .dweights = dw.mlp_norm,
                      .write = write,
                      .dx_sum = dw.attention_out.bias});

  linear_backward_weight(ctx, b.attended, s.dresidual, dw.attention_out.weight, {}, write);
  linear_backward_input(ctx, s.dresidual, w.attention_out.weight, s.dattended, Write::kOverwrite);
  const LayerView position = view(layer, a, nullptr);
  const AttentionBackward attended{.qkv = b.qkv,
                                   .out = b.attended,
                                   .logsumexp = b.logsumexp,
                                   .dout = s.dattended,
                                   .dqkv = s.dqkv};
  std::optional<AttentionInput> input = encoding_->attention_input(position);
  if (input) {
    input->bias_gradient = dw.qkv.bias;
    input->write = write;
  }
  const bool through = input && attention_backward_through(ctx, attention_, seq, attended, *input);
  if (!through) {
    attention_backward(ctx, attention_, seq, attended);
  }
  if (again) {
    layer_norm(ctx, b.residual, w.attention_norm, b.normed_in);
  }
  const LayerGradients dposition{
      .weights = dw.position, .write = write, .dembedding = s.dembedding};
  if (through) {
    encoding_->gate_backward(ctx, position, dposition);
  } else {
    encoding_->rotate_backward(ctx, seq, position, b.qkv, s.dqkv, dposition);
  }
  linear_backward_weight(ctx, b.normed_in.y, s.dqkv, dw.qkv.weight,
                         through ? Tensor{} : dw.qkv.bias, write);
  linear_backward_input(ctx, s.dqkv, w.qkv.weight, s.dnormed, Write::kOverwrite);
  const NormGate gate = encoding_->gate(position);
  const Tensor below = layer > 0 ? gradients_.blocks[layer - 1].mlp_out.bias : Tensor{};
  norm_backward(ctx,
                {.dy = s.dnormed,
                 .x = b.residual,
                 .normed = b.normed_in,
                 .gain = w.attention_norm.gain,
                 .dx = s.dresidual,
                 .dweights = dw.attention_norm,
                 .write = write,
                 .dx_sum = below,
                 .gate_weight = gate.weight,
                 .dlogits = gate.weight ? encoding_->gate_logits_gradient(position) : Tensor{}});
}

}  // namespace carope
