#include "model/config.h"

#include <fmt/ranges.h>

#define TOML_EXCEPTIONS 1
#include <toml++/toml.h>

#include <algorithm>
#include <vector>

namespace carope {
namespace {

void check_size(std::int64_t value, const char* field, std::int64_t largest) {
  check<ConfigError>(1 <= value && value <= largest, "model.{} = {} is not possible; give 1 to {}",
                     field, value, largest);
}

OptionValue option_value(const std::string& key, const toml::node& node) {
  if (const auto held = node.value_exact<bool>()) {
    return *held;
  }
  if (const auto held = node.value_exact<std::int64_t>()) {
    return *held;
  }
  if (const auto held = node.value_exact<double>()) {
    return *held;
  }
  if (const auto held = node.value_exact<std::string>()) {
    return *held;
  }
  throw ConfigError(fmt::format("{} must be a number, a text, true or false (line {})", key,
                                node.source().begin.line));
}

Options options_of(const toml::table& file, const char* section) {
  Options options;
  if (!file.contains(section)) {
    return options;
  }
  const toml::table* table = file[section].as_table();
  check<ConfigError>(table != nullptr, "'{}' must be a table, [{}]", section, section);
  for (const auto& [key, node] : *table) {
    const std::string name(key.str());
    options[name] = option_value(fmt::format("{}.{}", section, name), node);
  }
  return options;
}

}  // namespace

void GptConfig::validate() const {
  constexpr std::int64_t kLargestWidth = 1 << 20;
  check_size(layers, "layers", kLargestWidth);
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

GptConfig load_config(const std::filesystem::path& path) {
  check<ConfigError>(std::filesystem::is_regular_file(path),
                     "{}: there is no such configuration file", path.string());
  toml::table file;
  try {
    file = toml::parse_file(path.string());
  } catch (const toml::parse_error& error) {
    throw ConfigError(
        fmt::format("{}:{}: {}", path.string(), error.source().begin.line, error.description()));
  }
  const std::vector<std::string> sections{"model", "position"};
  for (const auto& [key, node] : file) {
    const std::string name(key.str());
    check<ConfigError>(std::find(sections.begin(), sections.end(), name) != sections.end(),
                       "{}: unknown section '{}'; did you mean '{}'?", path.string(), name,
                       nearest(name, sections));
  }
  GptConfig config;
  OptionReader model("model", options_of(file, "model"));
  config.layers = model.integer("layers", config.layers, 1);
  config.heads = model.integer("heads", config.heads, 1);
  config.width = model.integer("width", config.width, 1);
  config.vocabulary = model.integer("vocabulary", config.vocabulary, 1);
  config.length = model.integer("length", config.length, 1);
  model.finish();

  config.encoding_options = options_of(file, "position");
  if (const auto named = config.encoding_options.extract("encoding")) {
    const auto* name = std::get_if<std::string>(&named.mapped());
    check<ConfigError>(name != nullptr, "position.encoding = {} must be a name in quotes",
                       to_string(named.mapped()));
    config.encoding = *name;
  }
  config.validate();
  return config;
}

}  // namespace carope
