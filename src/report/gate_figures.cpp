#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/progress.h"
#include "report/figures.h"
#include "report/passage.h"
#include "report/svg.h"
#include "report/text.h"

namespace carope {
namespace {

/// The base of the RoPE that the gate starts from.
double start_base(const RunRecord& run) {
  constexpr double kDefault = 10'000.0;
  const auto section = run.settings.find("position");
  return OptionReader("position", section == run.settings.end() ? Options{} : section->second)
      .number("base", kDefault, 1.0);
}

/// Without a bias the gate cannot start as RoPE.
bool starts_as_rope(const RunRecord& run) {
  const auto section = run.settings.find("position");
  return section == run.settings.end() ||
         OptionReader("position", section->second).flag("bias", true);
}

/// f of that RoPE, whose pairs turn by f^0, f^1, f^2, ...
double start_frequency(const RunRecord& run) {
  return std::pow(start_base(run), -1.0 / static_cast<double>(run.gate->pairs));
}

/// How often each f was given, as a ridge over its own line, with quartiles beneath.
std::string head_row(const Chart& chart, const HeadGate& gate, int slot, double line) {
  constexpr double kRidge = 17;  // height
  const double most = gate.histogram.empty()
                          ? 0.0
                          : *std::max_element(gate.histogram.begin(), gate.histogram.end());
  std::string ridge = fmt::format("M{:.1f} {:.1f}", chart.px(0.0), line);
  const auto bins = static_cast<double>(gate.histogram.size());
  for (std::size_t i = 0; most > 0.0 && i < gate.histogram.size(); ++i) {
    ridge += fmt::format("V{:.1f}H{:.1f}", line - kRidge * gate.histogram[i] / most,
                         chart.px(static_cast<double>(i + 1) / bins));
  }
  ridge += fmt::format("V{:.1f}z", line);
  const auto& q = gate.quantiles;
  return fmt::format(
      "<g class=\"s{0}\"><title>layer {1}, head {2}: median {3:.4f}, half of the tokens {4:.4f} to "
      "{5:.4f}, nine tenths {6:.4f} to {7:.4f}</title><path class=\"ridge\" d=\"{8}\"/><path "
      "class=\"whisker\" d=\"M{9:.1f} {10:.1f}H{11:.1f}\"/><path class=\"box\" d=\"M{12:.1f} "
      "{10:.1f}H{13:.1f}\"/><path class=\"median\" d=\"M{14:.1f} {15:.1f}v6\"/></g>"
      "<text class=\"tick y\" x=\"{16:.1f}\" y=\"{17:.1f}\">{2}</text>"
      "<text class=\"tick value\" x=\"{18:.1f}\" y=\"{17:.1f}\">{3:.3f}</text>\n",
      slot, gate.layer, gate.head, q[2], q[1], q[3], q[0], q[4], ridge, chart.px(q[0]), line + 3,
      chart.px(q[4]), chart.px(q[1]), chart.px(q[3]), chart.px(q[2]), line, chart.px(0.0) - 7,
      line + 2, chart.px(1.0) + 6);
}

/// One layer: a row a head.
Drawing layer_panel(const EncodingRuns& encoding, const RunRecord& run, std::int64_t layer) {
  constexpr double kRow = 28;
  const double start = start_frequency(run);
  const Frame frame{.width = 260,
                    .height = 48 + kRow * static_cast<double>(run.gate->heads) + 26,
                    .left = 24,
                    .right = 38,
                    .top = 44,
                    .bottom = 26};
  Chart chart(fmt::format("Frequencies of layer {} by head", layer), frame,
              Axis::linear_exact({0.0, 1.0}), Axis::linear_exact({0.0, 1.0}));
  chart.add(fmt::format(
      "<text class=\"panel\" x=\"2\" y=\"14\">layer {}</text><text class=\"label\" x=\"2\" "
      "y=\"41\">head</text><text class=\"label end\" x=\"258\" y=\"41\">median</text>\n",
      layer));
  const double bottom = frame.height - frame.bottom;
  chart.add(fmt::format("<path class=\"axis\" d=\"M{:.1f} {:.1f}H{:.1f}\"/>", chart.px(0.0), bottom,
                        chart.px(1.0)));
  for (const double tick : {0.0, 0.25, 0.5, 0.75, 1.0}) {
    chart.add(fmt::format(
        "<path class=\"axis\" d=\"M{0:.1f} {1:.1f}v4\"/><text class=\"tick x\" x=\"{0:.1f}\" "
        "y=\"{2:.1f}\">{3}</text>\n",
        chart.px(tick), bottom, bottom + 16, tick));
  }
  for (const HeadGate& gate : run.gate->gates) {
    if (gate.layer == layer) {
      chart.add(head_row(chart, gate, encoding.slot,
                         frame.top + kRow * static_cast<double>(gate.head + 1) - 6));
    }
  }
  chart.mark_x(start, fmt::format("RoPE {:.3f}", start));
  return chart.drawing();
}

/// The panels of a small model fill half of the page.
bool is_narrow(const GateRecord& gate) { return gate.layers <= 2; }

/// The bases of one layer's heads as numbered discs, in as many lanes as they need.
struct Disc {
  std::int64_t head;
  double base, x;
  int lane;
};

std::vector<Disc> layer_discs(const Chart& chart, const GateRecord& gate, std::int64_t layer) {
  constexpr double kDisc = 17;  // with a little room
  std::vector<Disc> discs;
  for (const HeadGate& head : gate.gates) {
    if (head.layer == layer && std::isfinite(head.base) && head.base > 0.0) {
      discs.push_back({head.head, head.base, chart.px(head.base), 0});
    }
  }
  std::sort(discs.begin(), discs.end(), [](const Disc& a, const Disc& b) { return a.x < b.x; });
  std::vector<double> ends;  // of each lane
  for (Disc& disc : discs) {
    const auto free =
        std::find_if(ends.begin(), ends.end(), [&](double end) { return disc.x - end >= kDisc; });
    disc.lane = static_cast<int>(free - ends.begin());
    if (free == ends.end()) {
      ends.push_back(disc.x);
    } else {
      *free = disc.x;
    }
  }
  return discs;
}

}  // namespace

Figure gate_frequencies_figure(const EncodingRuns& encoding, const RunRecord& run) {
  const std::int64_t layers = run.gate->layers;
  std::vector<Drawing> panels;
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    panels.push_back(layer_panel(encoding, run, layer));
  }
  return {.name = "gate-frequencies-" + encoding.label,
          .title = "The frequencies it gives to tokens",
          .caption = fmt::format(
              "How often each frequency f was given, by layer and head, over {}. Beneath each "
              "ridge: median, half and nine tenths of the tokens. The dashed line is RoPE, f = "
              "{}^(-1/{}){}: a head to the right of it turns faster, one to the left slower, "
              "and a wide one tells tokens apart.",
              si(static_cast<double>(run.gate->tokens), "tokens"), grouped(start_base(run)),
              run.gate->pairs, starts_as_rope(run) ? ", where training began" : ""),
          .legend = {},
          .drawings = panels,
          .columns = layers % 4 != 0 && layers % 3 == 0 ? 3 : 4,  // leaves no hole
          .style = is_narrow(*run.gate) ? "" : "wide"};
}

Figure gate_bases_figure(const EncodingRuns& encoding, const RunRecord& run) {
  constexpr double kLane = 17, kGap = 9;
  const double start = start_base(run);
  Range range;
  range.include(start);
  for (const HeadGate& head : run.gate->gates) {
    range.include(head.base > 0.0 ? head.base : std::nan(""));
  }
  const Axis x = Axis::log(range);
  Frame frame{.left = 70, .right = 20};
  const Chart measure("", frame, x, x);  // places along x do not depend on the height
  std::string rows;
  double top = frame.top + 4;
  for (std::int64_t layer = 0; layer < run.gate->layers; ++layer) {
    const std::vector<Disc> discs = layer_discs(measure, *run.gate, layer);
    int lanes = 1;
    for (const Disc& disc : discs) {
      const double y = top + kLane * (disc.lane + 0.5);
      lanes = std::max(lanes, disc.lane + 1);
      rows += fmt::format(
          "<g class=\"s{0}\"><title>layer {1}, head {2}: base {3}</title><circle class=\"disc\" "
          "cx=\"{4:.1f}\" cy=\"{5:.1f}\" r=\"7.6\"/><text class=\"in-disc\" x=\"{4:.1f}\" "
          "y=\"{5:.1f}\" dy=\"3.2\">{2}</text></g>\n",
          encoding.slot, layer, disc.head, grouped(disc.base), disc.x, y);
    }
    const double height = kLane * lanes;
    rows +=
        fmt::format("<text class=\"tick y\" x=\"{:.1f}\" y=\"{:.1f}\" dy=\"4\">layer {}</text>\n",
                    frame.left - 8, top + 0.5 * height, layer);
    top += height + kGap;
    rows += fmt::format("<path class=\"grid\" d=\"M{:.1f} {:.1f}H{:.1f}\"/>\n", frame.left,
                        top - 0.5 * kGap, frame.width - frame.right);
  }
  frame.height = top + frame.bottom;
  Chart chart("Effective base of each head", frame, x, x);
  chart.mark_x(start, fmt::format("RoPE, {}", grouped(start)));
  chart.x_axis("effective base (log scale)", number_ticks(x, 6));
  chart.add(rows);
  return {
      .name = "gate-bases-" + encoding.label,
      .title = "As if each head had a base of its own",
      .caption =
          "The base of the RoPE whose f is the geometric mean of the head's, f^(-pairs); the "
          "number "
          "in the disc is the head's. Further right is a slower clock, which tells distant "
          "positions "
          "apart. In a head whose frequencies spread wide, the slow pairs turn faster on average "
          "than this base says.",
      .legend = {},
      .drawings = {chart.drawing()}};
}

Figure gate_passage_figure(const EncodingRuns& encoding, const RunRecord& run) {
  return {.name = "gate-passage-" + encoding.label,
          .title = "What the heads that tell tokens apart most see in a text",
          .caption = {},
          .legend = {},
          .drawings = passage_drawings(*run.gate)};
}

std::string gate_figures(const EncodingRuns& encoding, const RunRecord& run, int number) {
  const std::string text = passage_html(*run.gate, start_frequency(run), number);
  const std::string passage =
      text.empty() ? ""
                   : html_figure("What it sees in a text", text,
                                 "Each token in the colour of its frequency in the chosen layer "
                                 "and head, relative to that head's median: orange tokens turn the "
                                 "clock further, blue ones hold it back. The pointer shows the "
                                 "number.",
                                 is_narrow(*run.gate) ? "wide" : "");
  const std::string bases = to_html(gate_bases_figure(encoding, run));
  return to_html(gate_frequencies_figure(encoding, run)) +
         (is_narrow(*run.gate) ? bases + passage : passage + bases);
}

}  // namespace carope
