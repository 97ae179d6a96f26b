#pragma once

#include <functional>
#include <span>

#include "model/activations.h"
#include "model/batch.h"
#include "model/config.h"
#include "model/embedding_layer.h"
#include "model/parameter_memory.h"
#include "model/weights.h"

namespace carope {

/// Hears that the gradients of a block's parameters are complete, from the last block to the first;
/// -1 stands for those of all parameters.
using BlockFinished = std::function<void(std::int64_t block)>;

/// GPT-2 with a pluggable positional encoding: pre-norm blocks, tied embedding, biases, tanh-GELU.
class Gpt {
 public:
  /// `compute` is the type of activations and of the weights in matrix products: f32 or, on a GPU,
  /// bf16. Several processes that train it share what only an optimizer needs.
  explicit Gpt(const GptConfig& config, Device device = {}, DType compute = DType::kF32,
               const Sharding& sharding = {});
  /// The same with an encoding that no registry knows; the configuration's is not looked at.
  Gpt(const GptConfig& config, const Encoding& encoding, Device device = {},
      DType compute = DType::kF32, const Sharding& sharding = {});

  const GptConfig& config() const { return config_; }
  const Encoding& encoding() const { return block_.attention().encoding(); }
  std::span<const Parameter> parameters() const { return memory_.parameters(); }
  /// All of the parameters' memory, as those who train see it.
  const ParameterMemory& memory() const { return memory_; }
  /// Makes the encoding again for sequences of so many tokens, which some depend on. Call it before
  /// the sequences are read: activations stay valid, recorded decode steps and encoding() do not.
  void serve(std::int64_t length);
  /// The parameter of this name; throws if there is none.
  const Parameter& parameter(const std::string& name) const;
  std::int64_t parameter_count() const;

  /// Draws every parameter anew. A parameter depends on the seed and its own name alone, so models
  /// that differ in their encoding start from the same shared parameters.
  void initialise(std::uint64_t seed);

  /// Floating-point operations of one training step, forward and backward, for one token of a
  /// sequence of `length`: two a multiply-add, matrix products only, attention counted as causal.
  double training_flops_per_token(std::int64_t length) const;

  /// Plans a pass and takes its memory.
  Activations plan(const Pass& pass) const;
  DecodeState plan_decoding(std::int64_t batch, std::int64_t capacity) const;

  /// Throws unless the state has room for so many more tokens, and the encoding positions.
  void check_room(const DecodeState& state, std::int64_t tokens) const;

  /// Runs the blocks; the result is a.final_normed. Where the pass continues a decode state, the
  /// tokens follow those that it has seen, and it then has seen them too; on the CPU a token's
  /// results are then the same bits however the sequence is cut, and whichever others are in the
  /// batch.
  void forward(Context& ctx, const Sequence& given, const Tensor& tokens, Activations& a,
               DecodeState* state = nullptr) const;
  /// logits [R, V] of the last R of all N tokens of the last forward(), each row by itself.
  void logits(Context& ctx, const Activations& a, const Tensor& logits) const;

  /// The mean loss over the counted targets; a.losses has each token's. A decode state is as for
  /// forward().
  double loss(Context& ctx, const Batch& batch, Activations& a, DecodeState* state = nullptr) const;
  /// The mean loss, and `scale` times its gradient in every parameter's gradient.
  double loss_and_gradients(Context& ctx, const Batch& batch, Activations& a, Write write,
                            double scale = 1.0);
  /// As above, but the loss, times `scale`, goes to a.total_loss, and nobody waits for it.
  void gradients(Context& ctx, const Batch& batch, Activations& a, Write write, double scale = 1.0,
                 const BlockFinished& finished = {});

  /// What the parameters, their gradients and their rounded copies take.
  std::size_t bytes() const { return memory_.bytes(); }

 private:
  void backward(Context& ctx, const Batch& batch, Activations& a, Write write,
                const BlockFinished& finished);
  /// The sequence with its offset, or an error before anything is computed.
  Sequence checked(const Sequence& given, const Activations& a, const DecodeState* state) const;
  void check_positions(std::int64_t length) const;
  double read_mean_loss(Context& ctx, const Batch& batch, Activations& a) const;

  GptConfig config_;
  bool registered_ = false;  // whether the configuration names the encoding
  EmbeddingLayer embedding_;
  Block block_;
  ParameterMemory memory_;
  GptWeights weights_;
  GptWeights gradients_;
  Device device_;
  DType compute_;
};

}  // namespace carope
