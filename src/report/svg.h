#pragma once

#include <string>
#include <vector>

// A small kit of charts. They are SVG to stand inside a page: its style sheet gives the colours, by
// the classes s0, s1, ... of the palette's slots.
namespace carope {

/// The extent of what is drawn. What is no number does not count.
struct Range {
  double low = 1.0, high = 0.0;  // nothing yet

  void include(double value);
  bool empty() const { return low > high; }
};

/// From numbers to places between 0 and 1.
class Axis {
 public:
  /// Leaves a little room around the range.
  static Axis linear(Range range);
  /// From the lowest to the highest exactly.
  static Axis linear_exact(Range range);
  static Axis log(Range range);

  double at(double value) const;
  /// About `count` round numbers within the axis.
  std::vector<double> ticks(int count) const;

 private:
  Axis(bool log, double low, double high) : log_(log), low_(low), high_(high) {}

  bool log_;
  double low_, high_;
};

struct Point {
  double x, y;
};

/// The height of a band at a place.
struct Band {
  double x, low, high;
};

/// A number at the right end of a line.
struct EndValue {
  double y;
  int slot;
  std::string text;
};

struct Tick {
  double at;
  std::string text;
};

/// Round numbers as ticks.
std::vector<Tick> number_ticks(const Axis& axis, int count);

/// The sign of a slot, as a path around the origin.
std::string mark_shape(int slot);

/// A picture that stands inside a page, or with others in a file of its own.
struct Drawing {
  double width, height;     // of its view box
  std::string description;  // is read to those who do not see it
  std::string elements;
};

/// As an element of a page.
std::string to_svg(const Drawing& drawing);
/// As a part of another picture, at a place in it.
std::string to_svg_at(const Drawing& drawing, double x, double y);

/// What surrounds a chart, in the units of its view box.
struct Frame {
  double width = 480, height = 300;
  double left = 48, right = 54, top = 40, bottom = 44;
};

/// A chart of two axes. Texts are escaped here.
class Chart {
 public:
  /// `description` is read to those who do not see it.
  Chart(std::string description, Frame frame, Axis x, Axis y);

  double px(double x) const;
  double py(double y) const;

  void x_axis(const std::string& label, const std::vector<Tick>& ticks);
  void y_axis(const std::string& label, const std::vector<Tick>& ticks);
  /// A dashed line upwards, with a text at its top; `shade` tints what lies beyond.
  void mark_x(double x, const std::string& text, bool shade = false);
  /// Breaks where a height is no number.
  void line(const std::vector<Point>& points, int slot, const std::string& style = "line");
  void band(const std::vector<Band>& points, int slot);
  /// A sign at each point, with a text for the pointer that rests on it.
  void mark(Point point, int slot, const std::string& hint);
  /// Numbers beside the right end, moved apart where they would touch.
  void end_values(std::vector<EndValue> values);
  /// Adds elements in the units of the view box.
  void add(const std::string& elements) { body_ += elements; }

  Drawing drawing() const;

 private:
  Frame frame_;
  std::string description_, back_, body_;
  Axis x_, y_;
};

/// A bar a row, with its name before and its number behind it.
struct Bar {
  std::string label;
  int slot;
  double value;
  std::string text;
  std::vector<double> parts;  // what the value is the mean of
};

Drawing bars_drawing(const std::string& description, const std::vector<Bar>& bars);

}  // namespace carope
