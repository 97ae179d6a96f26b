#include "report/passage.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "report/results.h"
#include "report/text.h"

namespace carope {
namespace {

/// How the colours of a passage are scaled: by the head's own median and spread.
struct TokenScale {
  double median, spread;

  explicit TokenScale(const std::vector<double>& frequencies) {
    constexpr double kLeast = 0.005;  // a spread that is worth a colour
    median = quantile(frequencies, 0.5);
    std::vector<double> distances;
    for (const double f : frequencies) {
      distances.push_back(std::abs(f - median));
    }
    spread = std::max(quantile(distances, 0.95), kLeast);
  }

  /// From -1, far slower than the median, to 1, far faster.
  double at(double f) const { return std::clamp((f - median) / spread, -1.0, 1.0); }

 private:
  static double quantile(std::vector<double> values, double part) {
    std::sort(values.begin(), values.end());
    return values.empty() ? 0.0
                          : values[static_cast<std::size_t>(
                                std::round(part * static_cast<double>(values.size() - 1)))];
  }
};

/// A token as text in which line ends are seen.
std::string token_html(const std::string& token) {
  std::string html;
  for (const char c : escape_html(token)) {
    html += c == '\n' ? "<i>↵</i>\n" : std::string(1, c);
  }
  return html;
}

std::string choice(const char* name, std::int64_t count) {
  std::string html = fmt::format("<label>{0} <select name=\"{0}\" disabled>", name);
  for (std::int64_t i = 0; i < count; ++i) {
    html += fmt::format("<option value=\"{0}\"{1}>{0}</option>", i, i == 0 ? " selected" : "");
  }
  return html + "</select></label> ";
}

/// All frequencies for the page's script, in ten-thousandths: [layer][head][token].
std::string frequencies_json(const GateRecord& gate) {
  std::string json = "[";
  for (const auto& layer : gate.frequencies) {
    json += json.size() > 1 ? ",[" : "[";
    for (std::size_t head = 0; head < layer.size(); ++head) {
      json += head > 0 ? ",[" : "[";
      for (std::size_t i = 0; i < layer[head].size(); ++i) {
        json += fmt::format("{}{:.0f}", i > 0 ? "," : "", 1e4 * layer[head][i]);
      }
      json += "]";
    }
    json += "]";
  }
  return json + "]";
}

/// A token, or what a line end cut it into, as a line of a picture has it.
struct Piece {
  std::string text;
  int letters;
  bool ends_line;
  double frequency;
};

int count_letters(const std::string& text) {
  constexpr auto begins_letter = [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  };
  return static_cast<int>(std::count_if(text.begin(), text.end(), begins_letter));
}

std::vector<Piece> pieces_of(const std::vector<std::string>& tokens,
                             const std::vector<double>& frequencies) {
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    std::size_t begin = 0;
    while (begin < tokens[i].size()) {
      const std::size_t end = tokens[i].find('\n', begin);
      const bool ends_line = end != std::string::npos;
      const std::string text = tokens[i].substr(begin, end - begin) + (ends_line ? "↵" : "");
      pieces.push_back({text, count_letters(text), ends_line, frequencies[i]});
      begin = ends_line ? end + 1 : tokens[i].size();
    }
  }
  return pieces;
}

/// One head's picture. Letters are as wide as each other, whatever font a reader has.
Drawing head_drawing(const GateRecord& gate, const HeadGate& head, std::size_t tokens) {
  constexpr double kWidth = 760, kLetter = 7.4, kLine = 21, kTop = 42, kOpaque = 0.65;
  const auto& all =
      gate.frequencies[static_cast<std::size_t>(head.layer)][static_cast<std::size_t>(head.head)];
  const TokenScale scale(all);
  const std::vector<std::string> text(gate.passage.begin(),
                                      gate.passage.begin() + static_cast<std::ptrdiff_t>(tokens));
  std::string elements = fmt::format(
      "<text class=\"panel\" x=\"0\" y=\"14\">layer {}, head {}</text><text class=\"label\" "
      "x=\"110\" y=\"14\">f: {:.2f} and below blue, {:.2f} plain, {:.2f} and above "
      "orange</text>\n",
      head.layer, head.head, scale.median - scale.spread, scale.median,
      scale.median + scale.spread);
  double x = 0, y = kTop;
  for (const Piece& piece : pieces_of(text, all)) {
    const double width = kLetter * piece.letters;
    if (x > 0 && x + width > kWidth) {
      x = 0;
      y += kLine;
    }
    const double at = scale.at(piece.frequency);
    // Spaces before a word are its colour's, but no letters: not every viewer keeps them.
    const auto spaces = std::min(piece.text.find_first_not_of(' '), piece.text.size());
    const double indent = kLetter * static_cast<double>(spaces);
    elements += fmt::format(
        "<g><title>f = {:.4f}</title><rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" "
        "height=\"17\" "
        "rx=\"3\" style=\"fill: rgb(var(--{}) / {:.2f})\"/><text class=\"token\" x=\"{:.1f}\" "
        "y=\"{:.1f}\" textLength=\"{:.1f}\">{}</text></g>\n",
        piece.frequency, x, y - 13, width, at < 0 ? "slow" : "fast", kOpaque * std::abs(at),
        x + indent, y, width - indent, escape_html(piece.text.substr(spaces)));
    x = piece.ends_line ? 0 : x + width;
    y += piece.ends_line ? kLine : 0;
  }
  return {kWidth, y + kLine,
          fmt::format("A text in the colours of its frequencies in layer {}, head {}", head.layer,
                      head.head),
          elements};
}

}  // namespace

std::string passage_html(const GateRecord& gate, double start, int number) {
  if (gate.passage.empty() || gate.frequencies.empty()) {
    return "";
  }
  const std::vector<double>& shown = gate.frequencies[0][0];
  const TokenScale scale(shown);
  std::string html = fmt::format(
      "<div class=\"tokens\" id=\"passage{}\">\n<p class=\"choices\">{}{}<span class=\"scale\"><b "
      "class=\"low\">{:.3f}</b><span class=\"ramp\"></span><b class=\"high\">{:.3f}</b> "
      "<span>median "
      "<b class=\"mid\">{:.3f}</b>, RoPE {:.3f}</span></span></p>\n<p class=\"passage\">",
      number, choice("layer", gate.layers), choice("head", gate.heads), scale.median - scale.spread,
      scale.median + scale.spread, scale.median, start);
  for (std::size_t i = 0; i < gate.passage.size(); ++i) {
    const double at = scale.at(shown[i]);
    html +=
        fmt::format("<span class=\"{}\" style=\"--a:{:.2f}\" title=\"f = {:.4f}\">{}</span>",
                    at < 0 ? "slow" : "fast", std::abs(at), shown[i], token_html(gate.passage[i]));
  }
  return html + fmt::format("</p>\n<script type=\"application/json\">{}</script>\n</div>\n",
                            frequencies_json(gate));
}

std::vector<Drawing> passage_drawings(const GateRecord& gate) {
  constexpr std::size_t kHeads = 2, kTokens = 160;
  std::vector<Drawing> drawings;
  if (!gate.passage.empty() && !gate.frequencies.empty()) {
    for (const HeadGate* head : telling_heads(gate, kHeads)) {
      drawings.push_back(head_drawing(gate, *head, std::min(kTokens, gate.passage.size())));
    }
  }
  return drawings;
}

}  // namespace carope
