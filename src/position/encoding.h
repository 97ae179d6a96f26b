#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "core/options.h"
#include "core/parameter_spec.h"
#include "ops/rotary.h"

// A positional encoding as data: what it is. How it is run, the model decides (model/plan.h).
namespace carope {

/// The model that an encoding serves.
struct ModelShape {
  std::int64_t layers = 0;
  std::int64_t heads = 0;      // query heads
  std::int64_t key_heads = 0;  // key and value heads
  std::int64_t head_dim = 0;
  std::int64_t width = 0;
  std::int64_t length = 0;  // tokens of a training sequence
  std::int64_t served = 0;  // tokens of the sequences that are to be read; in training, `length`

  std::int64_t pairs() const { return head_dim / 2; }
};

/// What a gate reads.
enum class GateInput : std::uint8_t {
  kHidden,     // the layer's normalised input
  kEmbedding,  // the tokens' embedding
};

/// A gate of each layer: logits z = x Wᵀ + b in fp32, one a token and key head.
struct GateSpec {
  GateInput input = GateInput::kHidden;
  ParameterSpec weight;                 // [K, C]
  std::optional<ParameterSpec> bias{};  // [K]
};

/// Pair p has the phase (position + 1) increments_p.
struct FixedTurns {
  std::vector<std::uint32_t> increments;  // [P] in turns
};

/// Pair p has the phase Σ_{s <= t} ratio_p f(z_s)^(p + exponent_start), with f = 1 / (softplus +
/// 1).
struct PowerTurns {
  GateSpec gate;
  std::int64_t exponent_start = 0;
  std::vector<double> ratios{};  // [P] from 0 to 2^20, or empty: all are 1
};

/// A linear map of a head's vector that depends on its token's position and has no parameters, for
/// what the others cannot say. It runs on the host, vector by vector, and is slow.
struct CustomTurns {
  using Map = std::function<void(std::int64_t position, std::span<float> head)>;
  Map apply;      // in place
  Map transpose;  // the transposed map, which takes gradients back
};

/// Rotates q and k of each layer.
struct RotationSpec {
  std::variant<FixedTurns, PowerTurns, CustomTurns> turns;
  std::int64_t pairs = 0;  // P: the first 2P channels of a head turn
  RotaryLayout layout = RotaryLayout::kHalf;
  float magnitude = 1.0F;  // cosines and sines are multiplied by it
};

/// Adds one trained vector a position to the embedding.
struct LearnedPositions {
  ParameterSpec table;  // [positions, C]
};

/// Adds scale sin(position ω_i) and scale cos(position ω_i) to channels 2i and 2i + 1.
struct Sinusoids {
  std::vector<std::uint32_t> increments;  // [C/2] ω, in turns
  float scale = 1.0F;
};

/// Subtracts slope times distance from the scores of each head.
struct Slopes {
  std::vector<float> per_head;  // [H]
};

/// A positional encoding: any of three parts.
struct Encoding {
  std::optional<std::variant<LearnedPositions, Sinusoids>> additive{};
  std::optional<RotationSpec> rotation{};
  std::optional<Slopes> bias{};
  std::optional<std::int64_t> max_length{};  // the longest sequence it serves, if there is a bound
};

/// Throws unless the parts fit the model and each other.
void check_encoding(const Encoding& encoding, const ModelShape& shape);

/// The gate that sets the frequency of each token; null if the encoding has none.
const GateSpec* gate_of(const Encoding& encoding);

/// Parameters that the encoding adds to each layer, in order.
std::vector<ParameterSpec> layer_parameters(const Encoding& encoding);
/// Parameters that it adds to the model besides.
std::vector<ParameterSpec> model_parameters(const Encoding& encoding);

}  // namespace carope
