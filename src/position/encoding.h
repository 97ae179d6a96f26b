#pragma once

#include <optional>
#include <span>
#include <vector>

#include "core/context.h"
#include "core/options.h"
#include "core/parameter.h"
#include "ops/attention.h"
#include "ops/norm.h"

namespace carope {

/// What an encoding may know about the model it serves.
struct ModelShape {
  std::int64_t layers;
  std::int64_t heads;
  std::int64_t width;
  std::int64_t length;  // tokens of a training sequence

  std::int64_t head_dim() const { return width / heads; }
  std::int64_t pairs() const { return head_dim() / 2; }
};

/// A layer's attention input, as an encoding sees it.
struct LayerView {
  std::int64_t index;               // of the layer, from 0
  std::span<const Tensor> weights;  // layer_parameters()
  Tensor hidden;                    // [B, T, C] the layer's normalised input
  Tensor embedding;                 // [B, T, C] the tokens' embedding; only where reads_embedding()
  std::span<const Tensor> saved;    // saved(): kept from rotate to rotate_backward
  std::span<const Tensor> workspace;  // workspace(): shared by all layers, lost after the call
  std::span<const Tensor>
      state;  // decode_state(), or empty where a whole sequence is given at once
};

/// Where an encoding's gradients go. Frozen parameters have empty gradients.
struct LayerGradients {
  std::span<const Tensor> weights;
  Write write;        // of weights
  Tensor dembedding;  // added to where reads_embedding()
};

/// How a model knows the order of its tokens. An encoding overrides what it needs; the model calls
/// everything and knows no encoding by name.
class PositionEncoding {
 public:
  virtual ~PositionEncoding() = default;

  /// The longest sequence the encoding can serve; none if there is no bound.
  virtual std::optional<std::int64_t> max_length() const { return std::nullopt; }

  // Parameters: once for the model, and again for each layer.
  virtual std::vector<ParameterSpec> parameters() const { return {}; }
  virtual std::vector<ParameterSpec> layer_parameters() const { return {}; }

  // Absolute encodings add to the embedding x [B, T, C].
  virtual void add_to_embedding(Context& /*ctx*/, const Sequence& /*seq*/,
                                std::span<const Tensor> /*weights*/, const Tensor& /*x*/) const {}
  virtual void add_to_embedding_backward(Context& /*ctx*/, const Sequence& /*seq*/,
                                         const Tensor& /*dx*/,
                                         std::span<const Tensor> /*gradients*/,
                                         Write /*write*/) const {}

  virtual std::vector<TensorSpec> saved(const Sequence& /*seq*/) const { return {}; }
  virtual std::vector<TensorSpec> workspace(const Sequence& /*seq*/) const { return {}; }
  /// Whether the layers' views are to have the tokens' embedding.
  virtual bool reads_embedding() const { return false; }

  // Rotary encodings turn q and k of each layer in place, in qkv [B, T, 3C]; the backward pass gets
  // the turned qkv and turns dqkv back.
  virtual void rotate(Context& /*ctx*/, const Sequence& /*seq*/, const LayerView& /*layer*/,
                      const Tensor& /*qkv*/) const {}
  virtual void rotate_backward(Context& /*ctx*/, const Sequence& /*seq*/,
                               const LayerView& /*layer*/, const Tensor& /*qkv*/,
                               const Tensor& /*dqkv*/, const LayerGradients& /*gradients*/) const {}

  /// How rotate() turns q and k, for passes of attention that do it themselves; none where only
  /// rotate() and rotate_backward() can.
  virtual std::optional<AttentionInput> attention_input(const LayerView& /*layer*/) const {
    return std::nullopt;
  }
  /// What there is to do in the place of rotate() before such a forward pass.
  virtual void prepare_attention(Context& /*ctx*/, const LayerView& /*layer*/) const {}
  /// What is left of rotate_backward() after such a pass.
  virtual void gate_backward(Context& /*ctx*/, const LayerView& /*layer*/,
                             const LayerGradients& /*gradients*/) const {}

  /// Whether a gate sets each token's frequency, f = 1 / (softplus(z) + 1), and the logits
  /// z [B, T, H], which are in `saved` once q and k are turned.
  virtual bool has_gate() const { return false; }
  virtual Tensor gate_logits(const LayerView& /*layer*/) const { return {}; }
  /// The gate where it reads the layer's normalised input: the model computes its logits along with
  /// that, before rotate(), and takes their gradient as rotate_backward() or gate_backward() left
  /// it back into the layer.
  virtual NormGate gate(const LayerView& /*layer*/) const { return {}; }
  virtual Tensor gate_logits_gradient(const LayerView& /*layer*/) const { return {}; }

  /// Biased attention: slopes [H] of a penalty that grows with distance, or empty.
  virtual Tensor attention_slopes() const { return {}; }

  /// What a layer must remember between calls when a sequence comes in pieces, besides how many
  /// tokens there were. It starts as zero bytes.
  virtual std::vector<TensorSpec> decode_state(std::int64_t /*batch*/) const { return {}; }
};

/// An encoding that leaves q and k as they are.
class UnrotatedEncoding : public PositionEncoding {
 public:
  std::optional<AttentionInput> attention_input(const LayerView& /*layer*/) const override {
    return AttentionInput{};
  }
};

/// What a factory of encodings gets.
struct EncodingSetup {
  ModelShape shape;
  Device device;
  DType compute;  // of activations
  OptionReader& options;
};

}  // namespace carope
