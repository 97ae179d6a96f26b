#include "core/options.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace carope {
namespace {

std::size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

std::string to_string(const OptionValue& value) {
  return std::visit([](const auto& held) { return fmt::format("{}", held); }, value);
}

std::string nearest(const std::string& word, std::span<const std::string> candidates) {
  const auto found =
      std::min_element(candidates.begin(), candidates.end(), [&](const auto& a, const auto& b) {
        return edit_distance(word, a) < edit_distance(word, b);
      });
  return found == candidates.end() ? std::string{} : *found;
}

bool OptionReader::flag(const std::string& key, bool fallback) {
  const OptionValue& value = find(key, fallback);
  if (const bool* held = std::get_if<bool>(&value)) {
    return *held;
  }
  refuse(key, value, "true or false");
}

std::int64_t OptionReader::integer(const std::string& key, std::int64_t fallback,
                                   std::int64_t lowest, std::int64_t highest) {
  const OptionValue& value = find(key, fallback);
  const auto* held = std::get_if<std::int64_t>(&value);
  if (held == nullptr || *held < lowest || *held > highest) {
    refuse(key, value, fmt::format("a whole number from {} to {}", lowest, highest));
  }
  return *held;
}

double OptionReader::number(const std::string& key, double fallback, double lowest) {
  const OptionValue& value = find(key, fallback);
  double number = std::nan("");
  if (const auto* held = std::get_if<double>(&value)) {
    number = *held;
  } else if (const auto* whole = std::get_if<std::int64_t>(&value)) {
    number = static_cast<double>(*whole);
  }
  if (!(number >= lowest) || !std::isfinite(number)) {
    refuse(key, value, fmt::format("a number, {} or more", lowest));
  }
  return number;
}

std::string OptionReader::text(const std::string& key, const std::string& fallback) {
  const OptionValue& value = find(key, fallback);
  if (const auto* held = std::get_if<std::string>(&value)) {
    return *held;
  }
  refuse(key, value, "a text in quotes");
}

Options OptionReader::finish() const {
  std::vector<std::string> known;
  for (const auto& [key, value] : resolved_) {
    known.push_back(key);
  }
  for (const auto& [key, value] : options_) {
    if (resolved_.contains(key)) {
      continue;
    }
    if (known.empty()) {
      throw ConfigError(fmt::format("{}.{} = {}: there are no such options here; remove it",
                                    section_, key, to_string(value)));
    }
    throw ConfigError(fmt::format("{}.{} = {}: unknown option; did you mean '{}'? Valid: {}",
                                  section_, key, to_string(value), nearest(key, known),
                                  fmt::join(known, ", ")));
  }
  return resolved_;
}

const OptionValue& OptionReader::find(const std::string& key, OptionValue fallback) {
  const auto given = options_.find(key);
  return resolved_[key] = given == options_.end() ? std::move(fallback) : given->second;
}

std::string OptionReader::one_of(const std::string& key, const std::string& fallback,
                                 const std::vector<std::string>& names) {
  std::string chosen = text(key, fallback);
  if (std::find(names.begin(), names.end(), chosen) == names.end()) {
    refuse(key, chosen, fmt::format("one of {}", fmt::join(names, ", ")));
  }
  return chosen;
}

void OptionReader::refuse(const std::string& key, const OptionValue& value,
                          const std::string& valid) const {
  throw ConfigError(
      fmt::format("{}.{} = {} is not possible; give {}", section_, key, to_string(value), valid));
}

}  // namespace carope
