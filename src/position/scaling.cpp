#include "position/scaling.h"

#include <fmt/ranges.h>

#include <charconv>
#include <cmath>

#include "position/registry.h"

namespace carope {
namespace {

const std::vector<std::pair<std::string, ScalingKind>>& kinds() {
  static const std::vector<std::pair<std::string, ScalingKind>> kKinds{
      {"none", ScalingKind::kNone}, {"linear", ScalingKind::kLinear},
      {"ntk", ScalingKind::kNtk},   {"dynamic_ntk", ScalingKind::kDynamicNtk},
      {"yarn", ScalingKind::kYarn}, {"llama3", ScalingKind::kLlama3}};
  return kKinds;
}

/// The base that stretches the slowest pair by `stretch` and leaves the fastest alone.
double stretched_base(double base, double stretch, std::int64_t pairs) {
  const auto dim = static_cast<double>(2 * pairs);
  return base * std::pow(stretch, dim / (dim - 2.0));
}

/// YaRN: pairs that turn often within the original length stay, those that turn seldom are slowed
/// down, and between them a ramp mixes both.
void scale_by_ramp(const RopeScaling& scaling, double base, std::vector<double>& frequencies) {
  constexpr double kTurnsOften = 32.0;
  constexpr double kTurnsSeldom = 1.0;
  constexpr double kNarrowest = 0.001;
  const auto dim = static_cast<double>(2 * frequencies.size());
  const auto length = static_cast<double>(scaling.original_length);
  const auto pair_that_turns = [&](double times) {
    return dim * std::log(length / (times * 2.0 * std::numbers::pi)) / (2.0 * std::log(base));
  };
  const double low = std::max(std::floor(pair_that_turns(kTurnsOften)), 0.0);
  double high = std::min(std::ceil(pair_that_turns(kTurnsSeldom)), dim - 1.0);
  high = high == low ? high + kNarrowest : high;
  for (std::size_t p = 0; p < frequencies.size(); ++p) {
    const double ramp = std::clamp((static_cast<double>(p) - low) / (high - low), 0.0, 1.0);
    frequencies[p] *= ramp / scaling.factor + (1.0 - ramp);
  }
}

/// Llama 3's: by wavelength instead of by pair.
void scale_by_wavelength(const RopeScaling& scaling, std::vector<double>& frequencies) {
  constexpr double kLow = 1.0;
  constexpr double kHigh = 4.0;
  for (double& frequency : frequencies) {
    const double wavelengths =
        static_cast<double>(scaling.original_length) * frequency / (2.0 * std::numbers::pi);
    const double kept = std::clamp((wavelengths - kLow) / (kHigh - kLow), 0.0, 1.0);
    frequency *= (1.0 - kept) / scaling.factor + kept;
  }
}

}  // namespace

RopeScaling read_scaling(OptionReader& options, const ModelShape& shape) {
  RopeScaling scaling;
  scaling.kind = options.choice<ScalingKind>("scaling", ScalingKind::kNone, kinds());
  scaling.factor = options.number("factor", 1.0, 1.0);
  scaling.original_length = options.integer("original_length", shape.length, 1);
  check<ConfigError>(
      scaling.kind != ScalingKind::kNone || scaling.factor == 1.0,
      "{} = {} has nothing to scale; give {}, e.g. \"yarn\", or leave the factor out",
      options.name("factor"), scaling.factor, options.name("scaling"));
  return scaling;
}

std::vector<double> scaled_frequencies(const RopeScaling& scaling, std::int64_t pairs, double base,
                                       std::int64_t served) {
  const double s = scaling.factor;
  const double longer =
      std::max(static_cast<double>(served) / static_cast<double>(scaling.original_length), 1.0);
  const bool changes_base =
      scaling.kind == ScalingKind::kNtk || scaling.kind == ScalingKind::kDynamicNtk;
  check<ConfigError>(pairs > 1 || !changes_base,
                     "{} changes RoPE's base, which has no effect on one rotary pair; use linear",
                     "position.scaling");
  switch (scaling.kind) {
    case ScalingKind::kNtk:
      base = stretched_base(base, s, pairs);
      break;
    case ScalingKind::kDynamicNtk:
      base = stretched_base(base, 1.0 + s * (longer - 1.0), pairs);
      break;
    default:
      break;
  }
  std::vector<double> frequencies = rope_frequencies(pairs, base);
  switch (scaling.kind) {
    case ScalingKind::kLinear:
      for (double& frequency : frequencies) {
        frequency /= s;
      }
      break;
    case ScalingKind::kYarn:
      scale_by_ramp(scaling, base, frequencies);
      break;
    case ScalingKind::kLlama3:
      scale_by_wavelength(scaling, frequencies);
      break;
    default:
      break;
  }
  return frequencies;
}

float scaled_magnitude(const RopeScaling& scaling) {
  constexpr double kGrowth = 0.1;
  return scaling.kind == ScalingKind::kYarn
             ? static_cast<float>(kGrowth * std::log(scaling.factor) + 1.0)
             : 1.0F;
}

namespace {

struct NamedScaling {
  std::string name;
  double factor = 1.0;
};

NamedScaling parse_scaling(const std::string& text) {
  std::vector<std::string> names;
  for (const auto& [name, kind] : kinds()) {
    names.push_back(name);
  }
  const std::size_t colon = text.find(':');
  NamedScaling scaling{.name = text.substr(0, colon)};
  bool is_whole = scaling.name == "none";
  if (colon != std::string::npos) {
    const char* const end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data() + colon + 1, end, scaling.factor);
    is_whole = error == std::errc() && rest == end && scaling.name != "none";
  }
  check<ConfigError>(
      std::find(names.begin(), names.end(), scaling.name) != names.end() && is_whole,
      "RoPE scaling '{}' is not possible; write NAME:FACTOR, e.g. yarn:4, or none. Names: {}", text,
      fmt::join(names, ", "));
  return scaling;
}

}  // namespace

std::string canonical_scaling(const std::string& text) {
  const NamedScaling scaling = parse_scaling(text);
  return scaling.name == "none" ? scaling.name : fmt::format("{}:{}", scaling.name, scaling.factor);
}

Options with_rope_scaling(const std::string& encoding, const ModelShape& shape,
                          const Options& options, const std::string& text) {
  const NamedScaling scaling = parse_scaling(text);
  Options resolved;
  make_encoding(encoding, shape, options, &resolved);
  const std::string key = "scaling";
  for (const auto& [option, value] : resolved) {
    if (option == key || option.ends_with("." + key)) {
      const std::string part = option.substr(0, option.size() - key.size());
      Options changed = options;
      changed[part + key] = scaling.name;
      changed[part + "factor"] = scaling.factor;
      try {
        make_encoding(encoding, shape, changed);
      } catch (const ConfigError& error) {
        throw ConfigError(fmt::format("RoPE scaling '{}': {}", text, error.what()));
      }
      return changed;
    }
  }
  throw ConfigError(fmt::format(
      "the encoding '{}' has no option 'scaling', so RoPE scaling '{}' has nothing to scale; leave "
      "it out, or name a run with RoPE",
      encoding, text));
}

}  // namespace carope
