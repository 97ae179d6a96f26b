#include <fmt/format.h>

#include <algorithm>

#include "report/figures.h"
#include "report/page.h"
#include "report/text.h"

// A figure as HTML, and as a file.
namespace carope {
namespace {

/// Names beside their colours and marks, above a chart.
std::string html_legend(const std::vector<const EncodingRuns*>& encodings) {
  std::string html = "<ul class=\"legend\">";
  for (const EncodingRuns* encoding : encodings) {
    html += fmt::format(
        "<li><svg viewBox=\"-12 -6 24 12\" aria-hidden=\"true\"><path class=\"line s{0}\" "
        "d=\"M-12 0H12\"/><path class=\"mark s{0}\" d=\"{1}\"/></svg>{2}</li>",
        encoding->slot, mark_shape(encoding->slot), escape_html(encoding->label));
  }
  return html + "</ul>\n";
}

/// The same in a picture of a width.
Drawing drawn_legend(const std::vector<const EncodingRuns*>& encodings, double width) {
  constexpr double kLine = 18, kSign = 30, kLetter = 7.2, kGap = 16;
  std::string elements;
  double x = 0, y = 12;
  for (const EncodingRuns* encoding : encodings) {
    // The font is the reader's: a letter's width is a guess, on the wide side.
    const double wanted = kSign + kLetter * static_cast<double>(encoding->label.size());
    if (x > 0 && x + wanted > width) {
      x = 0;
      y += kLine;
    }
    elements += fmt::format(
        "<path class=\"line s{0}\" d=\"M{1:.1f} {2:.1f}h24\"/><path class=\"mark s{0}\" d=\"{3}\" "
        "transform=\"translate({4:.1f} {2:.1f})\"/><text x=\"{5:.1f}\" y=\"{2:.1f}\" "
        "dy=\"4\">{6}</text>\n",
        encoding->slot, x, y, mark_shape(encoding->slot), x + 12, x + kSign,
        escape_html(encoding->label));
    x += wanted + kGap;
  }
  return {width, encodings.empty() ? 0 : y + kLine, "", elements};
}

}  // namespace

std::string html_figure(const std::string& title, const std::string& content,
                        const std::string& caption, const std::string& style) {
  return fmt::format("<figure{}>\n<h2>{}</h2>\n{}<figcaption>{}</figcaption>\n</figure>\n",
                     style.empty() ? "" : fmt::format(" class=\"{}\"", style), escape_html(title),
                     content, escape_html(caption));
}

std::string to_html(const Figure& figure) {
  if (figure.drawings.empty()) {
    return "";
  }
  std::string content = figure.legend.empty() ? "" : html_legend(figure.legend);
  if (figure.columns == 1) {
    content += to_svg(figure.drawings.front());
  } else {
    content += fmt::format("<div class=\"panels{}\">\n", figure.columns == 3 ? " thirds" : "");
    for (const Drawing& drawing : figure.drawings) {
      content += to_svg(drawing);
    }
    content += "</div>\n";
  }
  return html_figure(figure.title, content, figure.caption, figure.style);
}

std::string to_svg(const Figure& figure) {
  constexpr double kMargin = 14, kTitle = 30, kGap = 16;
  const auto columns = static_cast<std::size_t>(figure.columns);
  std::string elements;
  double right = 0, top = kMargin + kTitle;
  for (const Drawing& drawing : figure.drawings) {
    right = std::max(right, static_cast<double>(std::min(columns, figure.drawings.size())) *
                                    (drawing.width + kGap) -
                                kGap);
  }
  const Drawing legend = drawn_legend(figure.legend, right);
  elements += to_svg_at(legend, kMargin, top);
  top += legend.height;
  for (std::size_t first = 0; first < figure.drawings.size(); first += columns) {
    double height = 0, x = kMargin;
    for (std::size_t i = first; i < std::min(first + columns, figure.drawings.size()); ++i) {
      elements += to_svg_at(figure.drawings[i], x, top);
      x += figure.drawings[i].width + kGap;
      height = std::max(height, figure.drawings[i].height);
    }
    top += height + kGap;
  }
  const double width = right + 2 * kMargin;
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
      "height=\"{1:.0f}\" role=\"img\" "
      "aria-label=\"{2}\">\n<style><![CDATA[\n{3}]]></style>\n<rect "
      "width=\"100%\" height=\"100%\" style=\"fill: var(--paper)\"/>\n<text class=\"panel\" "
      "x=\"{4:.0f}\" y=\"{5:.0f}\" style=\"font-size: 15px\">{2}</text>\n{6}</svg>\n",
      width, top, escape_html(figure.title), page_style(), kMargin, kMargin + 12, elements);
}

}  // namespace carope
