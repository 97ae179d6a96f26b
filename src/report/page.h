#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "report/results.h"

namespace carope {

/// report.html: one page that needs nothing beside it.
std::string report_page(const std::string& title, const std::vector<EncodingRuns>& encodings);

/// The style sheet of the page, in light and dark.
std::string_view page_style();

/// Recolours a passage when another layer or head is chosen.
std::string_view page_script();

/// Writes results.json, table.md and report.html into a folder, each complete or not at all.
void write_report(const std::filesystem::path& folder, const std::string& title,
                  const std::vector<RunRecord>& runs);

}  // namespace carope
