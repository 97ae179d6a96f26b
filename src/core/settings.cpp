#include "core/settings.h"

#define TOML_EXCEPTIONS 1
#include <toml++/toml.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/file.h"

namespace carope {
namespace {

/// The value of a node, if it is one that an option can have.
std::optional<OptionValue> option_value(const toml::node& node) {
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
  return std::nullopt;
}

void check_section(const std::string& section, std::span<const std::string> sections,
                   const std::string& where) {
  check<ConfigError>(std::find(sections.begin(), sections.end(), section) != sections.end(),
                     "{}: unknown section '{}'; did you mean '{}'?", where, section,
                     nearest(section, sections));
}

/// The options of a table. Those of a table in it have its name before theirs: "rope.base".
Options options_of(const toml::node& node, const std::string& section) {
  const toml::table* table = node.as_table();
  check<ConfigError>(table != nullptr, "'{}' must be a table, [{}]", section, section);
  Options options;
  for (const auto& [key, value] : *table) {
    const std::string name(key.str());
    if (value.is_table()) {
      for (const auto& [inner, held] : options_of(value, section + "." + name)) {
        options[name + "." + inner] = held;
      }
      continue;
    }
    const auto held = option_value(value);
    check<ConfigError>(held.has_value(), "{}.{} must be a number, a text, true or false (line {})",
                       section, name, value.source().begin.line);
    options[name] = *held;
  }
  return options;
}

/// A value as a command line has it: what TOML reads, or else the text itself.
OptionValue parse_value(const std::string& text) {
  try {
    const toml::table table = toml::parse("value = " + text);
    if (const auto held = option_value(*table.get("value")); held && table.size() == 1) {
      return *held;
    }
  } catch (const toml::parse_error&) {
    return text;
  }
  return text;
}

std::string quoted_as_json(const std::string& text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    throw ConfigError(fmt::format(
        "'{}' is not UTF-8, in which settings are kept; rename what it names, or name a link to it",
        text));
  }
}

/// A value as TOML writes it, in the fewest digits that read as the same number.
std::string written(const OptionValue& value) {
  if (const auto* text = std::get_if<std::string>(&value)) {
    // JSON's escapes are among TOML's, which also wants one for the last control character.
    std::string quoted = quoted_as_json(*text);
    for (std::size_t at = 0; (at = quoted.find('\x7f', at)) != std::string::npos;) {
      quoted.replace(at, 1, "\\u007f");
    }
    return quoted;
  }
  const std::string digits = to_string(value);
  const bool looks_whole = digits.find_first_not_of("-0123456789") == std::string::npos;
  return std::holds_alternative<double>(value) && looks_whole ? digits + ".0" : digits;
}

}  // namespace

Settings parse_settings(const std::string& text, const std::string& name,
                        std::span<const std::string> sections) {
  toml::table table;
  try {
    table = toml::parse(text);
  } catch (const toml::parse_error& error) {
    throw ConfigError(
        fmt::format("{}:{}: {}", name, error.source().begin.line, error.description()));
  }
  Settings settings;
  for (const auto& [key, node] : table) {
    const std::string section(key.str());
    check_section(section, sections, name);
    settings[section] = options_of(node, section);
  }
  return settings;
}

Settings load_settings(const std::filesystem::path& path, std::span<const std::string> sections) {
  check<ConfigError>(std::filesystem::is_regular_file(path), "{} {}; name a configuration file",
                     path.string(),
                     std::filesystem::exists(path) ? "is no file" : "does not exist");
  return parse_settings(read_file(path), path.string(), sections);
}

void set(Settings& settings, const std::string& name, const std::string& value,
         std::span<const std::string> sections) {
  const std::size_t dot = name.find('.');
  check<ConfigError>(dot != std::string::npos && dot > 0 && dot + 1 < name.size(),
                     "'{}' names no setting; write section.key", name);
  const std::string section = name.substr(0, dot);
  check_section(section, sections, "--" + name);
  settings[section][name.substr(dot + 1)] = parse_value(value);
}

std::string to_toml(const Settings& settings) {
  std::string text;
  for (const auto& [section, options] : settings) {
    text += fmt::format("{}[{}]\n", text.empty() ? "" : "\n", section);
    for (const auto& [key, value] : options) {
      text += fmt::format("{} = {}\n", key, written(value));
    }
  }
  return text;
}

}  // namespace carope
