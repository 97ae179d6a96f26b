#include "ops/carope.h"

#include "ops/linear.h"
#include "position/rotary_options.h"

namespace carope {
namespace {

enum class Source : std::uint8_t { kHidden, kEmbedding };

/// Context-aware rotary position embedding: each layer has a gate, one logit a token and head, that
/// sets how far the head's clock turns at that token.
class ContextAwareRotary : public PositionEncoding {
 public:
  explicit ContextAwareRotary(const EncodingSetup& setup)
      : shape_(setup.shape), device_(setup.device), compute_(setup.compute) {
    check_rotary(setup.shape);
    OptionReader& options = setup.options;
    op_ = {.heads = setup.shape.heads,
           .layout = rotary_layout(options),
           .exponent_start = options.integer("exponent_start", 0, 0, 64),
           .chunk = options.integer("chunk", 512, 1)};
    source_ =
        options.choice<Source>("source", Source::kHidden,
                               {{"hidden", Source::kHidden}, {"embedding", Source::kEmbedding}});
    bias_ = options.flag("bias", true);
    frozen_ = options.flag("frozen", false);
    decay_ = options.flag("decay", true);
    base_ = rotary_base(options);
    weight_deviation_ = options.number("weight_deviation", 0.0, 0.0);
    bias_deviation_ = options.number("bias_deviation", 0.0, 0.0);
    check<ConfigError>(bias_ || bias_deviation_ == 0.0,
                       "position.bias_deviation is {}, but there is no bias; leave it out, or "
                       "position.bias = false",
                       bias_deviation_);
  }

  std::vector<ParameterSpec> layer_parameters() const override {
    std::vector<ParameterSpec> specs{{.name = "weight",
                                      .shape = {shape_.heads, shape_.width},
                                      .init = {.deviation = weight_deviation_},
                                      .decay = decay_,
                                      .trainable = !frozen_}};
    if (bias_) {
      // With W = 0 this mean makes the encoding equal RoPE: training starts from there.
      specs.push_back(
          {.name = "bias",
           .shape = {shape_.heads},
           .init = {.mean = rope_gate_bias(shape_.pairs(), base_), .deviation = bias_deviation_}});
    }
    return specs;
  }

  bool reads_embedding() const override { return source_ == Source::kEmbedding; }

  std::vector<TensorSpec> saved(const Sequence& seq) const override {
    std::vector<TensorSpec> specs{gate_spec(seq), carope_carry_spec(op_, seq, shape_.pairs())};
    if (goes_through(seq)) {
      specs.push_back({phase_shape(seq), DType::kU16});
    }
    return specs;
  }

  std::vector<TensorSpec> workspace(const Sequence& seq) const override { return {gate_spec(seq)}; }

  std::vector<TensorSpec> decode_state(std::int64_t batch) const override {
    return {{{batch, shape_.heads, shape_.pairs()}, DType::kU32}};
  }

  void rotate(Context& ctx, const Sequence& seq, const LayerView& layer,
              const Tensor& qkv) const override {
    compute_logits(ctx, layer);
    carope(ctx, op_, seq, layer.saved[0], qkv, layer.saved[1],
           layer.state.empty() ? Tensor{} : layer.state[0], phases(layer));
  }

  void prepare_attention(Context& ctx, const LayerView& layer) const override {
    compute_logits(ctx, layer);
  }

  bool has_gate() const override { return true; }
  Tensor gate_logits(const LayerView& layer) const override { return layer.saved[0]; }
  NormGate gate(const LayerView& layer) const override {
    if (source_ == Source::kEmbedding) {
      return {};
    }
    return {.weight = layer.weights[0], .bias = bias(layer.weights), .logits = layer.saved[0]};
  }
  Tensor gate_logits_gradient(const LayerView& layer) const override { return layer.workspace[0]; }

  void rotate_backward(Context& ctx, const Sequence& seq, const LayerView& layer, const Tensor& qkv,
                       const Tensor& dqkv, const LayerGradients& gradients) const override {
    const Tensor& dlogits = layer.workspace[0];
    if (phases(layer)) {
      clear(ctx, layer.saved[1]);  // attention rotates without carries, within one chunk
    }
    carope_backward(ctx, op_, seq,
                    {.logits = layer.saved[0],
                     .carry = layer.saved[1],
                     .qkv = qkv,
                     .dqkv = dqkv,
                     .dlogits = dlogits});
    logits_backward(ctx, layer, gradients);
  }

  std::optional<AttentionInput> attention_input(const LayerView& layer) const override {
    if (!phases(layer)) {
      return std::nullopt;
    }
    return AttentionInput{.layout = op_.layout,
                          .logits = layer.saved[0],
                          .exponent_start = op_.exponent_start,
                          .phases = phases(layer),
                          .dlogits = gate_logits_gradient(layer)};
  }

  void gate_backward(Context& ctx, const LayerView& layer,
                     const LayerGradients& gradients) const override {
    logits_backward(ctx, layer, gradients);
  }

 private:
  /// Where the model has not done it, along with the norm that the gate reads.
  void compute_logits(Context& ctx, const LayerView& layer) const {
    if (source_ == Source::kEmbedding) {
      // A product so narrow is no slower by row.
      linear(ctx, layer.embedding, layer.weights[0], bias(layer.weights), layer.saved[0],
             Rounding::kByRow);
    }
  }

  void logits_backward(Context& ctx, const LayerView& layer,
                       const LayerGradients& gradients) const {
    const Tensor& dlogits = layer.workspace[0];
    linear_backward_weight(ctx, input(layer), dlogits, gradients.weights[0],
                           bias(gradients.weights), gradients.write);
    if (source_ == Source::kEmbedding) {
      linear_backward_input(ctx, dlogits, layer.weights[0], gradients.dembedding,
                            Write::kAccumulate);
    }
  }

  /// Whether attention's passes may rotate and undo it, for which each token's phases are kept.
  bool goes_through(const Sequence& seq) const {
    return op_.chunks(seq.length) == 1 &&
           attention_goes_through(device_, compute_, shape_.head_dim(), seq.length);
  }
  Shape phase_shape(const Sequence& seq) const {
    return {seq.batch, seq.length, shape_.heads, shape_.pairs()};
  }
  static Tensor phases(const LayerView& layer) {
    return layer.saved.size() > 2 ? layer.saved[2] : Tensor{};
  }
  TensorSpec gate_spec(const Sequence& seq) const {
    return {{seq.batch, seq.length, shape_.heads}};
  }
  const Tensor& input(const LayerView& layer) const {
    return source_ == Source::kHidden ? layer.hidden : layer.embedding;
  }
  Tensor bias(std::span<const Tensor> tensors) const { return bias_ ? tensors[1] : Tensor{}; }

  ModelShape shape_;
  Device device_;
  DType compute_;
  Carope op_;
  Source source_;
  bool bias_;
  bool frozen_;
  bool decay_;
  double base_;
  double bias_deviation_;    // of the gate's biases at the start
  double weight_deviation_;  // and of its weights
};

}  // namespace

std::unique_ptr<PositionEncoding> make_carope(const EncodingSetup& setup) {
  return std::make_unique<ContextAwareRotary>(setup);
}

}  // namespace carope
