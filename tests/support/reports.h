#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "report/comparison_table.h"

namespace carope::test {

/// The table that compares runs, as a report of them has it.
inline std::string table_of(const std::vector<std::filesystem::path>& folders) {
  const RunCollection collection = load_runs(folders);
  return to_markdown(compare(group_runs(collection.runs)));
}

}  // namespace carope::test
