#pragma once

#include <fmt/format.h>

#include <cstring>
#include <map>
#include <string>

#include "model/config.h"
#include "support/reference_ops.h"

namespace carope::reference {

using Parameters = std::map<std::string, Values>;  // by the name that the model gives them

/// The whole model once more, with its loss as a function of its parameters: GPT-2 with pre-norm
/// blocks, a tied embedding, biases and tanh-GELU, in complex numbers. Options of an encoding that
/// are not given have the defaults that METHOD.md settles.
class Gpt {
 public:
  Gpt(const GptConfig& config, Sequence seq, std::vector<std::int32_t> tokens,
      std::vector<std::int32_t> targets)
      : config_(config),
        seq_(std::move(seq)),
        tokens_(std::move(tokens)),
        targets_(std::move(targets)) {}

  /// The loss of each token, zero where its target is not counted.
  Values losses(const Parameters& parameters) const {
    const Values& table = parameters.at("embedding");
    Values x = embedding(tokens_, table, config_.width);
    if (has("learnable")) {
      x = add_positions(
          seq_, parameters.at(is_composed() ? "position.learnable.table" : "position.table"), x);
    } else if (has("sinusoidal")) {
      x = add_sinusoid(seq_, option("scale", 0.02 * std::numbers::sqrt2), x);
    }
    const Values embedded = x;
    for (std::int64_t layer = 0; layer < config_.layers; ++layer) {
      x = block(parameters, fmt::format("block.{}.", layer), x, embedded);
    }
    return cross_entropy(linear(norm(parameters, "final_norm", x), table, {}, config_.width),
                         targets_);
  }

  /// The mean over the counted targets.
  Complex loss(const Parameters& parameters) const {
    Complex sum = 0.0;
    double count = 0.0;
    const Values each = losses(parameters);
    for (std::size_t n = 0; n < each.size(); ++n) {
      sum += each[n];
      count += targets_[n] >= 0 ? 1.0 : 0.0;
    }
    return sum / count;
  }

 private:
  bool is_composed() const { return config_.encoding.find('+') != std::string::npos; }
  /// Whether the encoding is this one, or has it as a part.
  bool has(const std::string& part) const {
    return ("+" + config_.encoding + "+").find("+" + part + "+") != std::string::npos;
  }

  /// An option. The parts of a composition have no options of the same name in these tests.
  template <class T>
  T option(const std::string& key, T fallback) const {
    auto found = config_.encoding_options.find(key);
    for (const char* part : {"rope.", "carope."}) {
      if (is_composed() && has(std::string(part, std::strlen(part) - 1))) {
        found = config_.encoding_options.find(part + key);
      }
    }
    return found == config_.encoding_options.end() ? fallback : std::get<T>(found->second);
  }

  static Values norm(const Parameters& parameters, const std::string& name, const Values& x) {
    return layer_norm(x, parameters.at(name + ".gain"), parameters.at(name + ".bias")).y;
  }

  static Values dense(const Parameters& parameters, const std::string& name, const Values& x,
                      std::int64_t in) {
    return linear(x, parameters.at(name + ".weight"), parameters.at(name + ".bias"), in);
  }

  Values block(const Parameters& parameters, const std::string& prefix, const Values& x,
               const Values& embedded) const {
    const std::int64_t width = config_.width;
    const Values normed = norm(parameters, prefix + "attention_norm", x);
    const Values qkv = rotated(parameters, prefix, normed, embedded,
                               dense(parameters, prefix + "qkv", normed, width));
    const Values attended = attention(seq_, config_.heads, slopes(), qkv).out;
    const Values mid = add(x, dense(parameters, prefix + "attention_out", attended, width));
    const Values hidden = gelu(
        dense(parameters, prefix + "mlp_in", norm(parameters, prefix + "mlp_norm", mid), width));
    return add(mid, dense(parameters, prefix + "mlp_out", hidden, 4 * width));
  }

  Values rotated(const Parameters& parameters, const std::string& prefix, const Values& normed,
                 const Values& embedded, const Values& qkv) const {
    const std::int64_t pairs = config_.width / config_.heads / 2;
    Values phase;
    if (has("rope")) {
      return rotated_by_rope(qkv);
    } else if (has("carope")) {
      const bool from_embedding = option<std::string>("source", "hidden") == "embedding";
      const bool bias = option("bias", true);
      const std::string gate = is_composed() ? "position.carope." : "position.";
      const Values logits =
          linear(from_embedding ? embedded : normed, parameters.at(prefix + gate + "weight"),
                 bias ? parameters.at(prefix + gate + "bias") : Values{}, config_.width);
      phase = carope_phase(seq_, config_.heads, pairs, option<std::int64_t>("exponent_start", 0),
                           logits);
    } else {
      return qkv;
    }
    const bool half = option<std::string>("layout", "half") == "half";
    return rotate(config_.heads, pairs, half ? RotaryLayout::kHalf : RotaryLayout::kInterleaved,
                  phase, qkv);
  }

  /// RoPE of the first dimensions of a head, of which the slowest may stand still.
  Values rotated_by_rope(const Values& qkv) const {
    const auto dim = static_cast<double>(config_.width / config_.heads);
    const auto pairs = static_cast<std::int64_t>(dim * option("rotary_fraction", 1.0) / 2.0);
    std::vector<double> frequencies = frequencies_of(pairs, option("base", 10000.0));
    const auto moving =
        static_cast<std::size_t>(option("fraction", 1.0) * static_cast<double>(pairs));
    const double factor = option("factor", 1.0);
    const auto scaling = option<std::string>("scaling", "none");
    const auto original = static_cast<double>(option("original_length", config_.length));
    for (std::size_t p = 0; p < frequencies.size(); ++p) {
      if (scaling == "linear") {
        frequencies[p] /= factor;
      } else if (scaling == "llama3") {
        const double blend = std::clamp(
            (original * frequencies[p] / (2.0 * std::numbers::pi) - 1.0) / 3.0, 0.0, 1.0);
        frequencies[p] = (1.0 - blend) * frequencies[p] / factor + blend * frequencies[p];
      } else if (scaling == "yarn") {
        // So short an original length that every pair turns less than once: all are interpolated
        // but those that the ramp begins with.
        const double ramp = std::clamp(static_cast<double>(p) / 0.001, 0.0, 1.0);
        frequencies[p] *= ramp / factor + (1.0 - ramp);
      }
      frequencies[p] = p < moving ? frequencies[p] : 0.0;
    }
    const double magnitude = scaling == "yarn" ? 0.1 * std::log(factor) + 1.0 : 1.0;
    const bool half = option<std::string>("layout", "half") == "half";
    return rotate(config_.heads, pairs, half ? RotaryLayout::kHalf : RotaryLayout::kInterleaved,
                  rope_phase(seq_, config_.heads, frequencies), qkv, magnitude);
  }

  /// ALiBi's: head h of H has 2^(-8(h+1)/H).
  std::vector<double> slopes() const {
    std::vector<double> slopes;
    for (std::int64_t h = 0; has("alibi") && h < config_.heads; ++h) {
      slopes.push_back(
          std::exp2(-8.0 * static_cast<double>(h + 1) / static_cast<double>(config_.heads)));
    }
    return slopes;
  }

  GptConfig config_;
  Sequence seq_;
  std::vector<std::int32_t> tokens_;
  std::vector<std::int32_t> targets_;
};

}  // namespace carope::reference
