#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "eval/perplexity.h"

namespace carope {

/// Tokens that the model sees as one sequence. Its targets from number `first` on count.
struct Window {
  std::int64_t begin;  // in the stream
  std::int64_t length;
  std::int64_t first;
};

/// The windows of the configuration's protocol, of a length, in so many tokens of the stream.
std::vector<Window> cut_windows(const EvalConfig& config, std::int64_t length,
                                std::int64_t stretch);

/// A window that some protocols score.
struct ScoredWindow {
  /// How one of them does.
  struct Part {
    std::size_t protocol;  // its number
    std::size_t unit;      // among its windows
    std::int64_t first;    // target that counts
  };
  std::int64_t begin;
  std::int64_t length;
  std::vector<Part> parts{};

  /// The first target that counts for any.
  std::int64_t first() const {
    return std::min_element(parts.begin(), parts.end(),
                            [](const Part& a, const Part& b) { return a.first < b.first; })
        ->first;
  }
};

/// The windows of several protocols in the stream's order, those that they share once.
std::vector<ScoredWindow> merge_windows(const std::vector<std::vector<Window>>& protocols);

}  // namespace carope
