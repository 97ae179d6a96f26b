#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>

#include "core/options.h"

namespace carope {

/// A configuration as its author wrote it: options by section.
using Settings = std::map<std::string, Options>;

/// Reads TOML whose tables are sections; messages call it by `name`. An unknown section is an error
/// that suggests the nearest.
Settings parse_settings(const std::string& text, const std::string& name,
                        std::span<const std::string> sections);

/// Reads a TOML file in this way.
Settings load_settings(const std::filesystem::path& path, std::span<const std::string> sections);

/// Sets one option, named "section.key". The value is written as in TOML; a text needs no quotes.
void set(Settings& settings, const std::string& name, const std::string& value,
         std::span<const std::string> sections);

/// The settings as a TOML file that loads as the same again.
std::string to_toml(const Settings& settings);

}  // namespace carope
