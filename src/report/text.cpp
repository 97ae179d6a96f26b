#include "report/text.h"

#include <fmt/format.h>

#include <array>
#include <cmath>

#include "core/progress.h"

namespace carope {
namespace {

std::string superscript(int number) {
  static constexpr std::array kDigits{"⁰", "¹", "²", "³", "⁴", "⁵", "⁶", "⁷", "⁸", "⁹"};
  std::string text = number < 0 ? "⁻" : "";
  for (const char digit : std::to_string(std::abs(number))) {
    text += kDigits.at(static_cast<std::size_t>(digit - '0'));
  }
  return text;
}

/// "1.2e8", where C would write 1.2e+08.
std::string scientific(double number) {
  const std::string text = fmt::format("{:.1e}", number);
  const std::size_t exponent = text.find('e') + 1;
  return text.substr(0, exponent) + std::to_string(std::stoi(text.substr(exponent)));
}

}  // namespace

std::string escape_html(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    const auto code = static_cast<unsigned char>(c);
    if (c == '&') {
      escaped += "&amp;";
    } else if (c == '<') {
      escaped += "&lt;";
    } else if (c == '>') {
      escaped += "&gt;";
    } else if (c == '"') {
      escaped += "&quot;";
    } else if (c == '\'') {
      escaped += "&#39;";
    } else if ((code < 0x20 && c != '\n' && c != '\t') || code == 0x7f) {
      escaped += "\uFFFD";
    } else {
      escaped += c;
    }
  }
  return escaped;
}

std::string markdown_cell(const std::string& text) {
  std::string escaped;
  for (const char c : escape_html(text)) {
    escaped += c == '|' ? "\\|" : c == '\n' ? " " : std::string(1, c);
  }
  return escaped;
}

std::string perplexity_text(double perplexity) { return perplexity_text(perplexity, perplexity); }

std::string perplexity_text(double number, double perplexity) {
  constexpr double kReadable = 999'999.5;  // what would round to a million is too long
  if (perplexity >= kReadable && std::isfinite(number)) {
    return scientific(number);
  }
  const int digits = perplexity < 99.995 ? 2 : perplexity < 999.95 ? 1 : 0;
  return fmt::format("{:.{}f}", number, digits);
}

std::string tick_text(double number) {
  constexpr double kReadable = 1e12;  // larger ones are powers of ten
  if (std::abs(number) >= kReadable) {
    const double exponent = std::floor(std::log10(std::abs(number)) + 1e-9);
    const double factor = number / std::pow(10.0, exponent);
    const std::string power = "10" + superscript(static_cast<int>(exponent));
    return std::abs(factor - 1.0) < 1e-6 ? power : fmt::format("{:.3g}·{}", factor, power);
  }
  static constexpr std::array<std::pair<double, const char*>, 3> kUnits{
      {{1e9, "B"}, {1e6, "M"}, {1e4, "k"}}};
  for (const auto& [least, unit] : kUnits) {
    if (std::abs(number) >= least) {
      return fmt::format("{:.6g}{}", number / (unit[0] == 'k' ? 1e3 : least), unit);
    }
  }
  return fmt::format("{:.6g}", number);
}

std::string short_number(double number) {
  const std::string text = si(number, "");
  return text.substr(0, text.find_last_not_of(' ') + 1);
}

std::string grouped(double number) {
  std::string digits = fmt::format("{:.0f}", number);
  const std::size_t first = digits[0] == '-' ? 1 : 0;
  for (std::size_t place = digits.size(); place > first + 3;) {
    place -= 3;
    digits.insert(place, "\u2009");
  }
  return digits;
}

}  // namespace carope
