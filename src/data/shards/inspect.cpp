#include "data/shards/inspect.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

namespace carope {

double TokenStatistics::mean_length() const {
  return documents > 0 ? static_cast<double>(tokens) / static_cast<double>(documents) : 0.0;
}

std::int64_t TokenStatistics::median_length() const {
  std::int64_t shorter = 0;
  for (const auto& [length, count] : lengths) {
    shorter += count;
    if (2 * shorter >= documents) {
      return length;
    }
  }
  return 0;
}

std::int64_t TokenStatistics::longest() const {
  return lengths.empty() ? 0 : lengths.rbegin()->first;
}

std::vector<TokenStatistics::Bin> TokenStatistics::histogram() const {
  std::vector<Bin> bins;
  for (const auto& [length, count] : lengths) {
    while (bins.empty() || bins.back().highest < length) {
      const auto lowest =
          bins.empty()
              ? static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(length)))
              : 2 * bins.back().lowest;
      bins.push_back({lowest, 2 * lowest - 1, 0});
    }
    bins.back().documents += count;
  }
  return bins;
}

TokenStatistics count_tokens(std::span<const TokenId> tokens, std::optional<TokenId> end_of_text,
                             std::int64_t kept) {
  TokenStatistics statistics{.tokens = static_cast<std::int64_t>(tokens.size())};
  if (tokens.empty()) {
    return statistics;
  }
  statistics.highest = *std::max_element(tokens.begin(), tokens.end());
  if (!end_of_text) {
    return statistics;
  }
  statistics.begins_inside = tokens.front() != *end_of_text;
  for (auto begin = tokens.begin(); begin != tokens.end();) {
    const auto end = std::find(begin + 1, tokens.end(), *end_of_text);
    if (statistics.documents < kept) {
      statistics.first_documents.emplace_back(begin, end);
    }
    ++statistics.documents;
    ++statistics.lengths[end - begin];
    begin = end;
  }
  return statistics;
}

std::optional<TokenId> guess_end_of_text(std::span<const TokenId> tokens) {
  constexpr TokenId kGpt2EndOfText = 50256;
  const bool occurs = std::find(tokens.begin(), tokens.end(), kGpt2EndOfText) != tokens.end();
  return occurs ? std::optional(kGpt2EndOfText) : std::nullopt;
}

std::string one_line(std::string_view text) {
  std::string line;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n') {
      line += "\\n";
    } else if (byte < 0x20 || byte == 0x7f) {
      line += fmt::format("\\x{:02x}", byte);
    } else {
      line += c;
    }
  }
  return line;
}

}  // namespace carope
