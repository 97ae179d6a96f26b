#pragma once

#include <filesystem>

namespace carope {

/// Where fetched files are kept: $CAROPE_CACHE, else $XDG_CACHE_HOME/carope, else ~/.cache/carope.
std::filesystem::path cache_folder();

}  // namespace carope
