#include "report/figures.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <ranges>
#include <set>

#include "core/progress.h"
#include "report/svg.h"
#include "report/text.h"

// The first encoding is drawn last, so that no other covers it.
namespace carope {
namespace {

std::set<std::int64_t> training_lengths(const std::vector<EncodingRuns>& encodings) {
  std::set<std::int64_t> lengths;
  for (const EncodingRuns& encoding : encodings) {
    lengths.insert(encoding.runs.front()->length);
  }
  return lengths;
}

/// Where training ended, and beyond it what no model has seen.
void mark_training_length(Chart& chart, const std::vector<EncodingRuns>& encodings) {
  const auto lengths = training_lengths(encodings);
  for (const std::int64_t length : lengths) {
    chart.mark_x(static_cast<double>(length), fmt::format("trained at {}", length),
                 length == *lengths.rbegin());
  }
}

/// The losses of training as means over a fiftieth of the steps, which do not hide the trend.
std::vector<Point> smoothed(const std::vector<TrainingPoint>& steps) {
  constexpr std::size_t kWindows = 50, kMostPoints = 200;
  const std::size_t half = steps.size() / kWindows / 2;
  const std::size_t stride = std::max<std::size_t>(steps.size() / kMostPoints, 1);
  std::vector<Point> points;
  for (std::size_t i = 0; i < steps.size(); i += stride) {
    const std::size_t first = i < half ? 0 : i - half;
    const std::size_t end = std::min(i + half + 1, steps.size());
    double sum = 0.0;
    for (std::size_t j = first; j < end; ++j) {
      sum += steps[j].loss;
    }
    points.push_back(
        {static_cast<double>(steps[i].tokens), sum / static_cast<double>(end - first)});
  }
  return points;
}

/// Everything the figure of losses draws of a run.
struct LossCurve {
  const EncodingRuns* encoding;
  const RunRecord* run;
  std::vector<Point> training;
};

/// The heights worth showing: the first tenth of training falls from a height that would
/// flatten the rest.
Range loss_range(const std::vector<LossCurve>& curves, double most_tokens) {
  constexpr double kSteep = 0.1;
  Range range;
  for (const LossCurve& curve : curves) {
    for (const Point& point : curve.training) {
      range.include(point.x >= kSteep * most_tokens ? point.y : std::nan(""));
    }
    for (const ValidationPoint& point : curve.run->validation) {
      const bool shown = static_cast<double>(point.tokens) >= kSteep * most_tokens;
      range.include(shown ? point.loss : std::nan(""));
    }
  }
  return range;
}

/// The evaluations of an encoding's runs at the longest length that has a curve.
std::vector<const LengthResult*> longest_curves(const EncodingRuns& encoding) {
  std::vector<const LengthResult*> longest;
  for (const RunRecord* run : encoding.runs) {
    for (const LengthResult& result :
         run->evaluation ? std::span(run->evaluation->lengths) : std::span<const LengthResult>()) {
      if (result.positions.empty()) {
        continue;
      }
      if (!longest.empty() && result.length > longest.front()->length) {
        longest.clear();
      }
      if (longest.empty() || result.length == longest.front()->length) {
        longest.push_back(&result);
      }
    }
  }
  return longest;
}

/// Positions that share a point of the curves: the same for all encodings, or else the first point
/// of one would have less context than that of another.
std::int64_t positions_a_point(const std::vector<EncodingRuns>& encodings) {
  constexpr std::int64_t kMostPoints = 64;
  std::int64_t longest = 1;
  for (const EncodingRuns& encoding : encodings) {
    for (const LengthResult* result : longest_curves(encoding)) {
      longest = std::max(longest, result->length);
    }
  }
  return (longest + kMostPoints - 1) / kMostPoints;
}

/// Losses by place in the window: means over neighbours and seeds, each in the middle of its
/// positions.
std::vector<Point> by_position(const EncodingRuns& encoding, std::int64_t positions) {
  struct Bin {
    double loss = 0.0, place = 0.0, tokens = 0.0;
  };
  std::map<std::int64_t, Bin> bins;
  for (const LengthResult* result : longest_curves(encoding)) {
    for (std::size_t i = 0; i < result->positions.size(); ++i) {
      const PositionPoint& at = result->positions[i];
      const std::int64_t end =
          i + 1 < result->positions.size() ? result->positions[i + 1].position : result->length;
      const auto tokens = static_cast<double>(at.tokens);
      Bin& bin = bins[at.position / positions];
      bin.loss += at.loss * tokens;
      bin.place += 0.5 * static_cast<double>(at.position + end - 1) * tokens;
      bin.tokens += tokens;
    }
  }
  std::vector<Point> points;
  for (const auto& [index, bin] : bins) {
    if (bin.tokens > 0.0) {
      points.push_back({bin.place / bin.tokens, bin.loss / bin.tokens});
    }
  }
  return points;
}

void draw_losses(Chart& chart, const std::vector<LossCurve>& curves, const Range& shown) {
  std::vector<EndValue> ends;
  for (const LossCurve& curve : std::views::reverse(curves)) {
    const int slot = curve.encoding->slot;
    std::vector<Point> visible = curve.training;
    std::erase_if(visible, [&](const Point& point) { return point.y > shown.high; });
    chart.line(visible, slot, curve.encoding->runs.size() > 1 ? "line thin" : "line");
    for (const ValidationPoint& point : curve.run->validation) {
      if (point.loss <= shown.high) {
        chart.mark({static_cast<double>(point.tokens), point.loss}, slot,
                   fmt::format("{}, seed {}: validation loss {:.4f} after {}",
                               curve.encoding->label, curve.run->seed, point.loss,
                               si(static_cast<double>(point.tokens), "tokens")));
      }
    }
    const bool first_seed = curve.run == curve.encoding->runs.front();
    std::vector<double> finals;
    for (const RunRecord* run : curve.encoding->runs) {
      if (const auto loss = validation_loss(*run)) {
        finals.push_back(*loss);
      }
    }
    if (const auto summary = summarize(finals); first_seed && summary) {
      ends.push_back(
          {std::min(summary->mean, shown.high), slot, fmt::format("{:.3f}", summary->mean)});
    }
  }
  chart.end_values(std::move(ends));
}

void draw_perplexities(Chart& chart, const std::vector<EncodingRuns>& encodings,
                       const std::vector<std::int64_t>& lengths) {
  std::vector<EndValue> ends;
  for (const EncodingRuns& encoding : std::views::reverse(encodings)) {
    std::vector<Point> points;
    std::vector<Band> bands;
    for (const std::int64_t length : lengths) {
      const auto x = static_cast<double>(length);
      const auto summary = perplexity_at(encoding, length);
      points.push_back({x, summary ? summary->mean : std::nan("")});
      if (const auto interval = interval_at(encoding, length); summary && interval) {
        bands.push_back({x, interval->low, interval->high});
      } else {
        chart.band(bands, encoding.slot);
        bands.clear();
      }
    }
    chart.band(bands, encoding.slot);
    chart.line(points, encoding.slot);
    for (std::size_t i = 0; i < points.size(); ++i) {
      const auto interval = interval_at(encoding, lengths[i]);
      chart.mark(
          points[i], encoding.slot,
          fmt::format("{} at {}: perplexity {}{}", encoding.label, lengths[i],
                      perplexity_text(points[i].y),
                      interval ? fmt::format(", interval {} to {}", perplexity_text(interval->low),
                                             perplexity_text(interval->high))
                               : ""));
    }
    if (std::isfinite(points.back().y)) {
      ends.push_back({points.back().y, encoding.slot, perplexity_text(points.back().y)});
    }
  }
  chart.end_values(std::move(ends));
}

}  // namespace

Figure loss_figure(const std::vector<EncodingRuns>& encodings) {
  std::vector<LossCurve> curves;
  std::vector<const EncodingRuns*> named;
  double most_tokens = 0.0;
  for (const EncodingRuns& encoding : encodings) {
    named.push_back(&encoding);
    for (const RunRecord* run : encoding.runs) {
      curves.push_back({&encoding, run, smoothed(run->training)});
      most_tokens = std::max(most_tokens, static_cast<double>(run->training_tokens));
    }
  }
  const Range shown = loss_range(curves, most_tokens);
  if (shown.empty()) {
    return {};
  }
  const Axis x = Axis::linear_exact({0.0, most_tokens});
  const Axis y = Axis::linear(shown);
  Chart chart("Training and validation loss over the tokens of training", {.top = 26}, x, y);
  chart.x_axis("tokens of training", number_ticks(x, 5));
  chart.y_axis("loss, nats a token", number_ticks(y, 5));
  draw_losses(chart, curves, shown);
  return {.name = "training",
          .title = "How training went",
          .caption =
              "Lines: the loss in training, each point a mean over 2 % of the steps. Marks: the "
              "loss on held-out text, whose last value stands at the right. Lower is better; the "
              "steep first 10 % may lie above the figure.",
          .legend = named,
          .drawings = {chart.drawing()}};
}

Figure length_figure(const std::vector<EncodingRuns>& encodings) {
  const std::vector<std::int64_t> lengths = evaluated_lengths(encodings);
  Range x_range, y_range;
  std::vector<const EncodingRuns*> named;
  std::vector<Tick> ticks;
  for (const std::int64_t length : lengths) {
    x_range.include(static_cast<double>(length));
    ticks.push_back({static_cast<double>(length), std::to_string(length)});
  }
  for (const EncodingRuns& encoding : encodings) {
    bool drawn = false;
    for (const std::int64_t length : lengths) {
      if (const auto summary = perplexity_at(encoding, length)) {
        y_range.include(summary->mean);
        const Extent interval =
            interval_at(encoding, length).value_or(Extent{summary->mean, summary->mean});
        y_range.include(interval.low);
        y_range.include(interval.high);
        drawn = true;
      }
    }
    if (drawn) {
      named.push_back(&encoding);
    }
  }
  if (y_range.empty()) {
    return {};
  }
  for (const std::int64_t length : training_lengths(encodings)) {
    x_range.include(static_cast<double>(length));
  }
  const Axis x = Axis::log(x_range);
  const Axis y = Axis::log(y_range);
  Chart chart("Perplexity by window length", {}, x, y);
  mark_training_length(chart, encodings);
  chart.x_axis("window length, tokens (log scale)", ticks);
  chart.y_axis("perplexity (log scale)", number_ticks(y, 5));
  draw_perplexities(chart, encodings, lengths);
  return {.name = "perplexity-by-length",
          .title = "Past the length it was trained at",
          .caption =
              "Perplexity on held-out text in windows of each length; the tinted part is longer "
              "than training. A line that ends has no number further on; the table says why. "
              "Bands: the 95 % interval "
              "of the evaluation, over all seeds. At the right: the value at the longest.",
          .legend = named,
          .drawings = {chart.drawing()}};
}

Figure position_figure(const std::vector<EncodingRuns>& encodings) {
  Range x_range, y_range;
  std::vector<const EncodingRuns*> named;
  std::vector<std::vector<Point>> curves;
  const std::int64_t positions = positions_a_point(encodings);
  for (const EncodingRuns& encoding : encodings) {
    curves.push_back(by_position(encoding, positions));
    for (const Point& point : curves.back()) {
      x_range.include(point.x);
      y_range.include(point.y);
    }
    if (!curves.back().empty()) {
      named.push_back(&encoding);
    }
  }
  if (y_range.empty()) {
    return {};
  }
  x_range.include(0.0);
  for (const std::int64_t length : training_lengths(encodings)) {
    x_range.include(static_cast<double>(length));
  }
  const Axis x = Axis::linear_exact(x_range);
  const Axis y = Axis::linear(y_range);
  Chart chart("Loss by position in the window", {}, x, y);
  mark_training_length(chart, encodings);
  chart.x_axis("position in the window", number_ticks(x, 5));
  chart.y_axis("loss, nats a token", number_ticks(y, 5));
  for (std::size_t i = curves.size(); i-- > 0;) {
    chart.line(curves[i], encodings[i].slot);
    for (std::size_t j = 0; j < curves[i].size(); j += 8) {
      const Point& point = curves[i][j];
      chart.mark(point, encodings[i].slot,
                 fmt::format("{} near position {:.0f}: loss {:.3f}", encodings[i].label, point.x,
                             point.y));
    }
  }
  return {
      .name = "loss-by-position",
      .title = "Where in the window it fails",
      .caption =
          "Loss by position, in the longest windows that each encoding was evaluated with, each "
          "point a mean over neighbouring positions. A "
          "model that uses its context goes on falling; one that loses its way rises past "
          "the dashed line.",
      .legend = named,
      .drawings = {chart.drawing()}};
}

Figure speed_figure(const std::vector<EncodingRuns>& encodings) {
  const auto rope = std::find_if(encodings.begin(), encodings.end(),
                                 [](const auto& encoding) { return encoding.label == "rope"; });
  bool compared = false;
  std::vector<Bar> bars;
  for (const EncodingRuns& encoding : encodings) {
    const auto speed = speed_of(encoding);
    if (!speed) {
      continue;
    }
    Bar bar{.label = encoding.label,
            .slot = encoding.slot,
            .value = speed->mean,
            .text = si(speed->mean, "tokens") + "/s",
            .parts = {}};
    const auto ratio = rope == encodings.end() || encoding.label == "rope"
                           ? std::nullopt
                           : relative_speed(encoding, *rope);
    if (ratio) {
      bar.text += fmt::format(" · {:.0f} %", 100.0 * *ratio);
      compared = true;
    }
    for (const RunRecord* run : encoding.runs) {
      if (const auto each = speed_of(*run); each && encoding.runs.size() > 1) {
        bar.parts.push_back(*each);
      }
    }
    bars.push_back(std::move(bar));
  }
  if (bars.empty()) {
    return {};
  }
  return {.name = "speed",
          .title = "What it costs",
          .caption = fmt::format("Training speed, the median over the steps{}. Bars start at zero; "
                                 "ticks are single seeds.",
                                 compared ? "; percentages are of rope's, seed by seed" : ""),
          .legend = {},
          .drawings = {bars_drawing("Tokens of training per second", bars)}};
}

}  // namespace carope
