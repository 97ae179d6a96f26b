#pragma once

#include <string>
#include <string_view>

// Numbers and texts as the report writes them.
namespace carope {

/// A text as HTML shows it, in an element or in an attribute. Control characters that HTML forbids
/// become replacement characters.
std::string escape_html(std::string_view text);

/// A text in a cell of a Markdown table, in which HTML means something too.
std::string markdown_cell(const std::string& text);

/// A perplexity in four or more digits: "12.34", "123.4", "1234", and from a million on "1.2e8".
std::string perplexity_text(double perplexity);

/// A number that stands beside a perplexity, such as its deviation, in the same digits.
std::string perplexity_text(double number, double perplexity);

/// A number on an axis, in the fewest digits: "0.25", "500", "20k", "1.5M", "10⁹".
std::string tick_text(double number);

/// A number in four digits at most, of what the column's heading says: "115", "45.4 k", "1.66 M".
std::string short_number(double number);

/// A whole number with thin spaces between thousands: "10 000".
std::string grouped(double number);

}  // namespace carope
