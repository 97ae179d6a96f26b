#pragma once

#include <filesystem>
#include <string>

namespace carope {

/// Where fetched files are kept: $CAROPE_CACHE, else $XDG_CACHE_HOME/carope, else ~/.cache/carope.
std::filesystem::path cache_folder();

/// Where a tokenizer is that a user names: by a path, or by the name under which it was fetched.
std::filesystem::path tokenizer_path(const std::string& name);

}  // namespace carope
