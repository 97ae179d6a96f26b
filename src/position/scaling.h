#pragma once

#include <string>
#include <vector>

#include "position/encoding.h"

// RoPE scaling: other frequencies, so that a model serves sequences longer than those that it was
// trained on. The frequencies and score factors are those of transformers' ROPE_INIT_FUNCTIONS.
namespace carope {

enum class ScalingKind : std::uint8_t { kNone, kLinear, kNtk, kDynamicNtk, kYarn, kLlama3 };

struct RopeScaling {
  ScalingKind kind = ScalingKind::kNone;
  double factor = 1.0;               // how many times longer
  std::int64_t original_length = 0;  // of the training sequences
};

/// The options `scaling`, `factor` and `original_length`.
RopeScaling read_scaling(OptionReader& options, const ModelShape& shape);

/// Frequencies of P pairs, in radians a token. `served`: tokens of the sequences to be read, which
/// dynamic_ntk depends on.
std::vector<double> scaled_frequencies(const RopeScaling& scaling, std::int64_t pairs, double base,
                                       std::int64_t served);

/// What cosines and sines are multiplied by.
float scaled_magnitude(const RopeScaling& scaling);

/// A scaling as people write it, "yarn:4" or "none", always in the same way. Throws where it is
/// none.
std::string canonical_scaling(const std::string& text);

/// The options of a trained model's encoding with another scaling, written as "yarn:4". Throws
/// where the encoding has none.
Options with_rope_scaling(const std::string& encoding, const ModelShape& shape,
                          const Options& options, const std::string& text);

}  // namespace carope
