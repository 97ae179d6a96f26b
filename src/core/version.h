#pragma once

#include <string_view>

namespace carope {

/// This program's version, e.g. "0.1.0".
std::string_view version();

}  // namespace carope
