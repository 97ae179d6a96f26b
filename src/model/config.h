#pragma once

#include <cstdint>
#include <string>

#include "core/options.h"
#include "core/settings.h"
#include "position/registry.h"

namespace carope {

/// A GPT's size and positional encoding.
struct GptConfig {
  std::int64_t layers = 6;
  std::int64_t heads = 8;
  std::int64_t width = 512;
  std::int64_t vocabulary = 50304;
  std::int64_t length = 512;  // tokens of a training sequence
  std::string encoding = default_encoding();
  Options encoding_options{};

  std::int64_t served = 0;  // tokens of the sequences to be read; 0: `length`

  // What could be chosen for itself one day.
  std::int64_t key_heads() const { return heads; }
  std::int64_t head_dim() const { return width / heads; }
  std::int64_t mlp_width() const { return 4 * width; }

  ModelShape shape() const {
    return {.layers = layers,
            .heads = heads,
            .key_heads = key_heads(),
            .head_dim = head_dim(),
            .width = width,
            .length = length,
            .served = served > 0 ? served : length};
  }

  /// Throws a ConfigError that names the field, the value and what would be valid.
  void validate() const;
};

/// Reads the sections [model] and [position], and fills in what they leave out. An unknown key is
/// an error that suggests the nearest.
GptConfig read_model(Settings& settings);

/// Gives the model's RoPE another scaling, written as "yarn:4". Throws where there is none to
/// scale.
void scale_rope(GptConfig& config, const std::string& scaling);

}  // namespace carope
