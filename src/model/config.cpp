#include "model/config.h"

#include <fmt/ranges.h>

#include <vector>

#include "position/scaling.h"

namespace carope {
namespace {

void check_size(std::int64_t value, const char* field, std::int64_t largest) {
  check<ConfigError>(1 <= value && value <= largest, "model.{} = {} is not possible; give 1 to {}",
                     field, value, largest);
}

}  // namespace

void GptConfig::validate() const {
  constexpr std::int64_t kMostLayers = 1 << 14;
  constexpr std::int64_t kLargestWidth = 1 << 20;
  check_size(layers, "layers", kMostLayers);
  check_size(heads, "heads", kLargestWidth);
  check_size(width, "width", kLargestWidth);
  check_size(vocabulary, "vocabulary", kHighestInteger);
  check_size(length, "length", kHighestInteger);
  if (width % heads != 0 || width / heads % 2 != 0) {
    std::vector<std::int64_t> valid;
    for (std::int64_t candidate = 1; candidate <= width; ++candidate) {
      if (width % candidate == 0 && width / candidate % 2 == 0) {
        valid.push_back(candidate);
      }
    }
    check<ConfigError>(
        !valid.empty(),
        "model.width = {} is odd; heads need an even dimension, so give an even width", width);
    throw ConfigError(fmt::format(
        "model.heads = {} does not cut model.width = {} into heads of an even dimension; "
        "valid: {}",
        heads, width, fmt::join(valid, ", ")));
  }
}

GptConfig read_model(Settings& settings) {
  GptConfig config;
  OptionReader model("model", settings["model"]);
  config.layers = model.integer("layers", config.layers, 1);
  config.heads = model.integer("heads", config.heads, 1);
  config.width = model.integer("width", config.width, 1);
  config.vocabulary = model.integer("vocabulary", config.vocabulary, 1);
  config.length = model.integer("length", config.length, 1);
  settings["model"] = model.finish();
  config.validate();

  config.encoding_options = settings["position"];
  if (const auto named = config.encoding_options.extract("encoding")) {
    const auto* name = std::get_if<std::string>(&named.mapped());
    check<ConfigError>(name != nullptr, "position.encoding = {} must be a name in quotes",
                       to_string(named.mapped()));
    config.encoding = *name;
  }
  make_encoding(config.encoding, config.shape(), config.encoding_options, &settings["position"]);
  settings["position"]["encoding"] = config.encoding;
  return config;
}

void scale_rope(GptConfig& config, const std::string& scaling) {
  config.encoding_options =
      with_rope_scaling(config.encoding, config.shape(), config.encoding_options, scaling);
}

}  // namespace carope
