#pragma once

#include <string>

namespace carope::test {

/// JSON lists in one another; by default more than a function that calls itself for each has stack
/// for.
inline std::string deep_json(std::size_t levels = 200'000) {
  return std::string(levels, '[') + std::string(levels, ']');
}

}  // namespace carope::test
