#pragma once

#include <map>
#include <string>

namespace carope {

/// The configurations that the program brings along, as TOML by name: the files of configs/.
const std::map<std::string, std::string>& presets();

}  // namespace carope
