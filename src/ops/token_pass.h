#pragma once

#include <memory>
#include <vector>

#include "core/context.h"
#include "ops/attention.h"
#include "ops/norm.h"
#include "ops/rotary.h"

// A single token's way through all layers of a GPT as one kernel. Token by token, a model is as
// fast as its weights are read; between kernels nothing is.
namespace carope {

/// How a layer rotates q and k of one token: by (position + 1) * increments; by its state, once a
/// gate has advanced that as carope() does; or, as by default, not at all.
struct TokenRotation {
  RotaryLayout layout = RotaryLayout::kHalf;
  Tensor increments{};  // [P] u32

  Tensor gate_weight{};  // [H, C] f32
  Tensor gate_bias{};    // [H] f32, or empty
  Tensor state{};        // [1, H, P] u32
  std::int64_t exponent_start = 0;
  bool gate_reads_embedding = false;  // or the layer's normalised input
};

/// A layer's weights, and what it remembers of the tokens before.
struct TokenLayer {
  NormWeights attention_norm, mlp_norm;
  Tensor qkv_weight, qkv_bias;                      // [3C, C], [3C]
  Tensor attention_out_weight, attention_out_bias;  // [C, C], [C]
  Tensor mlp_in_weight, mlp_in_bias;                // [4C, C], [4C]
  Tensor mlp_out_weight, mlp_out_bias;              // [C, 4C], [C]
  KeyValueCache cache;                              // [1, capacity, C]
  TokenRotation rotation;
};

struct TokenModel {
  Attention attention;
  std::vector<TokenLayer> layers;
  NormWeights final_norm;
  Tensor classifier;  // [V, C]
};

/// The tensors of the model must outlive it.
class TokenPass {
 public:
  virtual ~TokenPass() = default;

  /// Takes the embedding [1, C] of the token at `position` [1] i32, on the device, through the
  /// model; the caches and the states have it then. logits [1, V] f32. Nothing happens if `ended`
  /// [1] i32, on the device, is not 0.
  virtual void run(Context& ctx, const Tensor& embedding, const Tensor& position,
                   const Tensor& ended, const Tensor& logits) = 0;
};

/// Empty where no kernel serves the model: in fp32, with unusual widths, on the CPU.
std::unique_ptr<TokenPass> make_token_pass(Context& ctx, const TokenModel& model);

/// Whether single tokens may pass in one kernel; each context keeps one of these.
struct TokenKernels {
  explicit TokenKernels(const Context&) {}

  enum class Use : std::uint8_t { kFastest, kOneAnOperation };
  Use use = Use::kFastest;  // other than that: for tests and measurements
};

}  // namespace carope
