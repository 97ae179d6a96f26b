#include "model/gpt.h"

#include <algorithm>
#include <utility>

#include "core/parallel.h"
#include "core/random.h"
#include "ops/cross_entropy.h"
#include "ops/offsets.h"
#include "ops/sum.h"
#include "position/registry.h"

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

const GptConfig& validated(const GptConfig& config) {
  config.validate();
  return config;
}

Encoding encoding_of(const GptConfig& config) {
  return make_encoding(config.encoding, validated(config).shape(), config.encoding_options);
}

/// The factor of a loss's sum that makes it a mean.
double mean_scale(const Batch& batch) {
  return 1.0 / static_cast<double>(std::max<std::int64_t>(batch.counted(), 1));
}

}  // namespace

Gpt::Gpt(const GptConfig& config, Device device, DType compute, const Sharding& sharding)
    : Gpt(config, encoding_of(config), device, compute, sharding) {
  registered_ = true;
}

Gpt::Gpt(const GptConfig& config, const Encoding& encoding, Device device, DType compute,
         const Sharding& sharding)
    : config_(validated(config)),
      embedding_((check_encoding(encoding, config_.shape()), encoding), device),
      block_(config, encoding, device),
      device_(device),
      compute_(compute) {
  check<ConfigError>(compute == DType::kF32 || device.kind == DeviceKind::kCuda,
                     "a model computes in {} on a GPU only; use fp32 on the CPU",
                     to_string(compute));
  const auto bound = encoding.max_length;
  check<ConfigError>(
      !bound || config.length <= *bound,
      "model.length = {} is past the {} positions of the encoding '{}'; give at most {}",
      config.length, bound.value_or(0), config.encoding, bound.value_or(0));

  std::vector<ParameterSpec> specs;
  lay_out_weights(config_, encoding, [&](const ParameterSpec& spec) {
    specs.push_back(spec);
    return Tensor{};
  });
  memory_ = ParameterMemory(specs, device, compute, sharding);
  const auto lay_out = [&](const auto& tensor_of) {
    auto parameter = parameters().begin();
    return lay_out_weights(config_, encoding,
                           [&](const ParameterSpec&) { return tensor_of(*parameter++); });
  };
  weights_ = lay_out([](const Parameter& p) { return p.rounded ? p.rounded : p.value; });
  gradients_ = lay_out([](const Parameter& p) { return p.gradient; });
}

void Gpt::serve(std::int64_t length) {
  if (std::exchange(config_.served, length) != length && registered_) {
    const Encoding encoding = encoding_of(config_);
    embedding_ = EmbeddingLayer(encoding, device_);
    block_ = Block(config_, encoding, device_);
  }
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
  for (const ParameterSpec& spec : layer_parameters(encoding())) {
    layer_weights += spec.shape.rank() == 2 ? static_cast<double>(spec.shape.size()) : 0.0;
  }
  // Scores and values: each query meets (length + 1) / 2 keys on average.
  const double attention = width * (static_cast<double>(length) + 1.0);
  const double multiply_adds = static_cast<double>(config_.layers) * (layer_weights + attention) +
                               static_cast<double>(config_.vocabulary) * width;
  return 3.0 * 2.0 * multiply_adds;
}

Activations Gpt::plan(const Pass& pass) const {
  return {config_, block_, make_plan(config_, encoding(), device_, compute_, pass)};
}

DecodeState Gpt::plan_decoding(std::int64_t batch, std::int64_t capacity) const {
  check<ConfigError>(batch >= 1 && capacity >= 1, "{} sequences of {} tokens cannot be decoded",
                     batch, capacity);
  return {config_, block_, batch, capacity, device_, compute_};
}

void Gpt::check_positions(std::int64_t length) const {
  const auto bound = encoding().max_length;
  check<ConfigError>(
      !bound || length <= *bound,
      "a sequence of {} tokens is past the {} positions of the encoding '{}'; use at most {}",
      length, bound.value_or(0), config_.encoding, bound.value_or(0));
}

void Gpt::check_room(const DecodeState& state, std::int64_t tokens) const {
  const std::int64_t length = state.longest() + tokens;
  check<ConfigError>(length <= state.capacity,
                     "{} tokens do not fit a decode state of {}; make it longer", length,
                     state.capacity);
  check_positions(length);
}

Sequence Gpt::checked(const Sequence& given, const Activations& a, const DecodeState* state) const {
  const Pass& pass = a.plan.pass;
  check<ShapeError>(given.batch == pass.batch && given.length == pass.length,
                    "activations were planned for {} x {} tokens, not {} x {}", pass.batch,
                    pass.length, given.batch, given.length);
  check<ShapeError>(!given.offsets, "a sequence continues through a decode state");
  check<ShapeError>(pass.continues() == (state != nullptr),
                    "activations were planned for {}, which goes {} a decode state",
                    to_string(pass.purpose), pass.continues() ? "through" : "without");
  check<ShapeError>(pass.documents || !given.document_start,
                    "activations were planned for rows of one document, not for packed ones");
  check_documents(given);
  if (state == nullptr) {
    check_positions(given.length);
    return given;
  }
  check<ShapeError>(state->offsets.size() == given.batch,
                    "the decode state is for {} sequences, not {}", state->offsets.size(),
                    given.batch);
  check_room(*state, given.length);
  Sequence seq = given;
  seq.offsets = state->offsets;
  return seq;
}

void Gpt::forward(Context& ctx, const Sequence& given, const Tensor& tokens, Activations& a,
                  DecodeState* state) const {
  const Sequence seq = checked(given, a, state);
  embedding_.forward(ctx, seq, tokens, weights_.embedding, weights_.positions, a.embedding);
  for (std::size_t layer = 0; layer < a.blocks.size(); ++layer) {
    const bool last = layer + 1 == a.blocks.size();
    block_.forward(ctx, a.plan, seq, weights_.blocks[layer], a.embedding, a.blocks[layer],
                   state == nullptr ? nullptr : &state->layers[layer],
                   last ? a.final_residual : a.blocks[layer + 1].residual);
  }
  layer_norm(ctx, a.final_residual, weights_.final_norm, a.final_normed);
  if (state != nullptr) {
    advance(ctx, state->offsets, seq.length);
    for (std::int64_t& seen : state->seen) {
      seen += seq.length;
    }
  }
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
                        .logits = a.logits,
                        .rounding = a.plan.rounding});
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
  check<ShapeError>(a.plan.pass.trains(), "gradients need activations planned for training");
  const double mean = scale * mean_scale(batch);
  forward(ctx, batch.seq, batch.tokens, a);
  classifier_loss_backward(ctx,
                           {.hidden = a.final_normed.y,
                            .weight = weights_.embedding,
                            .targets = batch.targets,
                            .losses = a.losses,
                            .logits = a.logits},
                           {.dhidden = a.workspace.dnormed,
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
  BlockWorkspace& s = a.workspace;
  const auto report = [&](std::int64_t block) {
    if (finished) {
      finished(block);
    }
  };
  carope::clear(ctx, s.dresidual);
  if (s.dembedding) {
    carope::clear(ctx, s.dembedding);
  }
  norm_backward(ctx,
                {.x = a.final_residual,
                 .normed = a.final_normed,
                 .gain = weights_.final_norm.gain,
                 .dx = s.dresidual,
                 .dweights = gradients_.final_norm,
                 .write = write,
                 .dbias_before = gradients_.blocks.back().mlp.out.bias},
                s.dnormed);
  for (std::size_t layer = a.blocks.size(); layer-- > 0;) {
    block_.backward(ctx, a.plan, batch.seq, weights_.blocks[layer], gradients_.blocks[layer],
                    a.embedding, a.blocks[layer], s,
                    layer > 0 ? gradients_.blocks[layer - 1].mlp.out.bias : Tensor{}, write);
    report(static_cast<std::int64_t>(layer));
  }
  embedding_.backward(ctx, batch.seq, batch.tokens, s.dresidual, gradients_.embedding,
                      gradients_.positions, write);
  if (s.dembedding) {
    embedding_backward(ctx, batch.tokens, s.dembedding, gradients_.embedding);
  }
  report(-1);
}

}  // namespace carope
