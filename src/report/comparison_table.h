#pragma once

#include <string>
#include <vector>

#include "report/results.h"

namespace carope {

/// The encodings side by side, and beside them what the paper has for them.
struct ComparisonTable {
  struct Column {
    std::string heading;
    bool paper = false;
  };
  struct Cell {
    std::string text;
    bool best = false;
    std::string hint;  // e.g. why there is no number
  };
  struct Row {
    std::string label;
    int slot;
    std::vector<Cell> cells;
  };

  std::string paper;  // which of its experiments, e.g. "paper, GPT-Tiny, FineWeb-Edu"
  std::vector<Column> columns;
  std::vector<Row> rows;
  std::string measure;             // what the numbers are, without a full stop
  std::vector<std::string> notes;  // how to read it, a sentence each
};

ComparisonTable compare(const std::vector<EncodingRuns>& encodings);

/// Perplexities by a further protocol alone.
ComparisonTable compare(const std::vector<EncodingRuns>& encodings, const std::string& protocol);

/// table.md
std::string to_markdown(const ComparisonTable& table);
std::string to_html(const ComparisonTable& table);
/// For a terminal.
std::string to_text(const ComparisonTable& table);

}  // namespace carope
