#include "report/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "report/text.h"

namespace carope {
namespace {

/// Round steps of a linear axis: 1, 2 or 5 times a power of ten.
std::vector<double> linear_ticks(double low, double high, int count) {
  const double rough = (high - low) / std::max(count, 1);
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  const double rest = rough / power;
  const double step = power * (rest < 1.5 ? 1.0 : rest < 3.5 ? 2.0 : rest < 7.5 ? 5.0 : 10.0);
  std::vector<double> ticks;
  const double slack = step * 1e-9;
  for (double i = std::ceil((low - slack) / step); i * step <= high + slack; ++i) {
    ticks.push_back(i == 0.0 ? 0.0 : i * step);
  }
  return ticks;
}

/// The coarsest round numbers of a logarithmic axis that are enough.
std::vector<double> log_ticks(double low, double high, int count) {
  static const std::vector<std::vector<double>> kFactors{
      {1}, {1, 3}, {1, 2, 5}, {1, 1.5, 2, 3, 4, 5, 7}};
  const int first = static_cast<int>(std::floor(std::log10(low)));
  const int last = static_cast<int>(std::ceil(std::log10(high)));
  const int stride = std::max(1, (last - first) / std::max(count, 1));
  for (const auto& factors : kFactors) {
    std::vector<double> ticks;
    for (int exponent = first; exponent <= last; ++exponent) {
      for (const double factor : factors) {
        const double tick = factor * std::pow(10.0, exponent);
        if (exponent % stride == 0 && tick >= low * (1 - 1e-9) && tick <= high * (1 + 1e-9)) {
          ticks.push_back(tick);
        }
      }
    }
    if (static_cast<int>(ticks.size()) * 2 > count) {
      return ticks;
    }
  }
  return linear_ticks(low, high, count);
}

/// Moves heights apart until they are `distance` from each other, and keeps them within bounds.
void spread(std::vector<double>& heights, double distance, double top, double bottom) {
  for (std::size_t i = 0; i < heights.size(); ++i) {
    heights[i] = std::max(heights[i], i == 0 ? top : heights[i - 1] + distance);
  }
  double lowest = bottom;
  for (std::size_t i = heights.size(); i-- > 0;) {
    heights[i] = std::min(heights[i], lowest);
    lowest = heights[i] - distance;
  }
}

}  // namespace

void Range::include(double value) {
  if (std::isfinite(value)) {
    *this = empty() ? Range{value, value} : Range{std::min(low, value), std::max(high, value)};
  }
}

Axis Axis::linear(Range range) {
  const double room =
      range.high > range.low ? 0.06 * (range.high - range.low) : 0.5 * std::abs(range.high) + 0.5;
  return {false, range.low - room, range.high + room};
}

Axis Axis::linear_exact(Range range) {
  return {false, range.low, range.high > range.low ? range.high : range.low + 1.0};
}

Axis Axis::log(Range range) {
  const double room = range.high > range.low ? std::pow(range.high / range.low, 0.06) : 2.0;
  return {true, range.low / room, range.high * room};
}

double Axis::at(double value) const {
  return log_ ? std::log(value / low_) / std::log(high_ / low_) : (value - low_) / (high_ - low_);
}

std::vector<double> Axis::ticks(int count) const {
  return log_ ? log_ticks(low_, high_, count) : linear_ticks(low_, high_, count);
}

std::vector<Tick> number_ticks(const Axis& axis, int count) {
  std::vector<Tick> ticks;
  for (const double tick : axis.ticks(count)) {
    ticks.push_back({tick, tick_text(tick)});
  }
  return ticks;
}

std::string mark_shape(int slot) {
  static constexpr std::array kShapes{"M-3.4 0a3.4 3.4 0 1 0 6.8 0a3.4 3.4 0 1 0 -6.8 0z",
                                      "M-3 -3h6v6h-6z", "M0 -4.3l4.3 4.3l-4.3 4.3l-4.3 -4.3z",
                                      "M0 -4l4 7h-8z"};
  return kShapes.at(static_cast<std::size_t>(slot) % kShapes.size());
}

Chart::Chart(std::string description, Frame frame, Axis x, Axis y)
    : frame_(frame), description_(std::move(description)), x_(x), y_(y) {}

double Chart::px(double x) const {
  return frame_.left + x_.at(x) * (frame_.width - frame_.left - frame_.right);
}

double Chart::py(double y) const {
  return frame_.height - frame_.bottom - y_.at(y) * (frame_.height - frame_.top - frame_.bottom);
}

void Chart::x_axis(const std::string& label, const std::vector<Tick>& ticks) {
  constexpr double kClosest = 38;  // two texts would touch
  const double bottom = frame_.height - frame_.bottom;
  back_ += fmt::format("<path class=\"axis\" d=\"M{:.1f} {:.1f}H{:.1f}\"/>\n", frame_.left, bottom,
                       frame_.width - frame_.right);
  double last = -kClosest;
  for (const Tick& tick : ticks) {
    const double x = px(tick.at);
    back_ += fmt::format("<path class=\"axis\" d=\"M{:.1f} {:.1f}v4\"/>", x, bottom);
    if (x - last >= kClosest) {
      back_ += fmt::format("<text class=\"tick x\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", x,
                           bottom + 17, escape_html(tick.text));
      last = x;
    }
  }
  back_ += fmt::format("<text class=\"label middle\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n",
                       0.5 * (frame_.left + frame_.width - frame_.right), frame_.height - 7,
                       escape_html(label));
}

void Chart::y_axis(const std::string& label, const std::vector<Tick>& ticks) {
  for (const Tick& tick : ticks) {
    const double y = py(tick.at);
    back_ += fmt::format(
        "<path class=\"grid\" d=\"M{:.1f} {:.1f}H{:.1f}\"/><text class=\"tick y\" x=\"{:.1f}\" "
        "y=\"{:.1f}\" dy=\"4\">{}</text>\n",
        frame_.left, y, frame_.width - frame_.right, frame_.left - 7, y, escape_html(tick.text));
  }
  back_ += fmt::format("<text class=\"label\" x=\"2\" y=\"14\">{}</text>\n", escape_html(label));
}

void Chart::mark_x(double x, const std::string& text, bool shade) {
  const double at = px(x);
  const double right = frame_.width - frame_.right;
  const double bottom = frame_.height - frame_.bottom;
  if (shade && right - at > 1.0) {
    back_ += fmt::format(
        "<rect class=\"beyond\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\"/>\n",
        at, frame_.top, right - at, bottom - frame_.top);
  }
  // The text stands on the side that has room for it.
  const bool leftwards = at > frame_.left + 0.6 * (right - frame_.left);
  back_ += fmt::format(
      "<path class=\"reference\" d=\"M{0:.1f} {1:.1f}V{2:.1f}\"/><text class=\"note{3}\" "
      "x=\"{4:.1f}\" y=\"{5:.1f}\">{6}</text>\n",
      at, frame_.top - 10, bottom, leftwards ? " end" : "", at + (leftwards ? -5 : 5),
      frame_.top - 3, escape_html(text));
}

void Chart::line(const std::vector<Point>& points, int slot, const std::string& style) {
  std::string path;
  bool drawing = false;
  for (const Point& point : points) {
    if (!std::isfinite(point.y)) {
      drawing = false;
      continue;
    }
    path += fmt::format("{}{:.1f} {:.1f}", drawing ? "L" : "M", px(point.x), py(point.y));
    drawing = true;
  }
  body_ += fmt::format("<path class=\"{} s{}\" d=\"{}\"/>\n", style, slot, path);
}

void Chart::band(const std::vector<Band>& points, int slot) {
  if (points.empty()) {
    return;
  }
  std::string path;
  for (const Band& point : points) {
    path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", px(point.x), py(point.high));
  }
  for (auto point = points.rbegin(); point != points.rend(); ++point) {
    path += fmt::format("L{:.1f} {:.1f}", px(point->x), py(point->low));
  }
  body_ += fmt::format("<path class=\"band s{}\" d=\"{}z\"/>\n", slot, path);
}

void Chart::mark(Point point, int slot, const std::string& hint) {
  if (std::isfinite(point.y)) {
    body_ += fmt::format(
        "<path class=\"mark s{}\" d=\"{}\" transform=\"translate({:.1f} {:.1f})\"><title>{}</title>"
        "</path>\n",
        slot, mark_shape(slot), px(point.x), py(point.y), escape_html(hint));
  }
}

void Chart::end_values(std::vector<EndValue> values) {
  constexpr double kLine = 13;
  std::stable_sort(values.begin(), values.end(),
                   [&](const auto& a, const auto& b) { return py(a.y) < py(b.y); });
  std::vector<double> heights;
  for (const EndValue& value : values) {
    heights.push_back(py(value.y));
  }
  spread(heights, kLine, frame_.top, frame_.height - frame_.bottom);
  const double right = frame_.width - frame_.right;
  for (std::size_t i = 0; i < values.size(); ++i) {
    body_ += fmt::format(
        "<path class=\"leader s{0}\" d=\"M{1:.1f} {2:.1f}L{3:.1f} {4:.1f}\"/><text class=\"value "
        "s{0}\" x=\"{5:.1f}\" y=\"{4:.1f}\" dy=\"4\">{6}</text>\n",
        values[i].slot, right + 1, py(values[i].y), right + 8, heights[i], right + 10,
        escape_html(values[i].text));
  }
}

Drawing Chart::drawing() const {
  return {frame_.width, frame_.height, description_, back_ + body_};
}

std::string to_svg(const Drawing& drawing) {
  return fmt::format(
      "<svg viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" aria-label=\"{}\">\n{}</svg>\n",
      drawing.width, drawing.height, escape_html(drawing.description), drawing.elements);
}

std::string to_svg_at(const Drawing& drawing, double x, double y) {
  return fmt::format(
      "<svg x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.0f}\" height=\"{:.0f}\">\n{}</svg>\n", x, y,
      drawing.width, drawing.height, drawing.elements);
}

Drawing bars_drawing(const std::string& description, const std::vector<Bar>& bars) {
  constexpr double kWidth = 480, kRow = 40, kMost = 310;
  double highest = 0.0;
  for (const Bar& bar : bars) {
    highest =
        std::max({highest, bar.value,
                  bar.parts.empty() ? 0.0 : *std::max_element(bar.parts.begin(), bar.parts.end())});
  }
  std::string body;
  double top = 4;
  for (const Bar& bar : bars) {
    const auto length = [&](double value) { return highest > 0 ? kMost * value / highest : 0.0; };
    body += fmt::format("<text class=\"name\" x=\"0\" y=\"{:.1f}\">{}</text>\n", top + 11,
                        escape_html(bar.label));
    body += fmt::format(
        "<rect class=\"bar s{}\" x=\"0\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"14\" rx=\"2\"/>\n",
        bar.slot, top + 17, length(bar.value));
    for (const double part : bar.parts) {
      body += fmt::format("<path class=\"part\" d=\"M{:.1f} {:.1f}v18\"/>", length(part), top + 15);
    }
    body += fmt::format("<text class=\"number\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n",
                        length(bar.value) + 9, top + 28.5, escape_html(bar.text));
    top += kRow;
  }
  return {kWidth, top + 4, description, body};
}

}  // namespace carope
