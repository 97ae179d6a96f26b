#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <map>
#include <string>

namespace carope {

/// Lets an option take large numbers as people write them: 500k, 100M, 10B.
inline CLI::AsNumberWithUnit as_quantity() {
  static const std::map<std::string, std::int64_t> kUnits{
      {"k", 1'000}, {"M", 1'000'000}, {"B", 1'000'000'000}};
  return {kUnits, CLI::AsNumberWithUnit::CASE_SENSITIVE, "N[k|M|B]"};
}

}  // namespace carope
