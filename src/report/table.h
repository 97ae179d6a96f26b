#pragma once

#include <string>
#include <vector>

namespace carope {

/// Rows of text in columns, the first aligned to the left and the others to the right.
class Table {
 public:
  explicit Table(std::vector<std::string> header) : rows_{std::move(header)} {}

  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  /// All rows so far, a line each.
  std::string text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace carope
