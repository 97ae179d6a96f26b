#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/error.h"

namespace carope {

using OptionValue = std::variant<bool, std::int64_t, double, std::string>;
using Options = std::map<std::string, OptionValue>;

std::string to_string(const OptionValue& value);

/// The candidate with the smallest edit distance to `word`; empty if there are none.
std::string nearest(const std::string& word, std::span<const std::string> candidates);

/// No size of anything may be larger: products of two still fit 64 bits.
inline constexpr std::int64_t kHighestInteger = (std::int64_t{1} << 31) - 1;

/// Reads options by key with defaults. What no reader asked for is an error, raised by `finish`.
class OptionReader {
 public:
  /// `section` is how messages name the options, e.g. "position".
  OptionReader(std::string section, Options options)
      : section_(std::move(section)), options_(std::move(options)) {}

  bool flag(const std::string& key, bool fallback);
  std::int64_t integer(const std::string& key, std::int64_t fallback, std::int64_t lowest,
                       std::int64_t highest = kHighestInteger);
  double number(const std::string& key, double fallback, double lowest);
  std::string text(const std::string& key, const std::string& fallback);
  /// An option as messages name it, e.g. "position.base".
  std::string name(const std::string& key) const { return section_ + "." + key; }
  /// Accepts an option that has no meaning any more.
  void ignore(const std::string& key) { options_.erase(key); }

  template <class T>
  T choice(const std::string& key, T fallback,
           const std::vector<std::pair<std::string, T>>& choices) {
    std::vector<std::string> names;
    std::string chosen;
    for (const auto& [name, value] : choices) {
      names.push_back(name);
      if (value == fallback) {
        chosen = name;
      }
    }
    chosen = one_of(key, chosen, names);
    for (const auto& [name, value] : choices) {
      if (name == chosen) {
        return value;
      }
    }
    return fallback;
  }

  /// Every option that was asked for, with its value or its default. Throws a ConfigError that
  /// suggests the nearest key if an option is left that nobody asked for.
  Options finish() const;

 private:
  /// The value of an option, or its default; noted as asked for.
  const OptionValue& find(const std::string& key, OptionValue fallback);
  std::string one_of(const std::string& key, const std::string& fallback,
                     const std::vector<std::string>& names);
  [[noreturn]] void refuse(const std::string& key, const OptionValue& value,
                           const std::string& valid) const;

  std::string section_;
  Options options_;
  Options resolved_;  // what was asked for
};

}  // namespace carope
