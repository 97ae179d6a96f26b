#pragma once

#include <string>
#include <vector>

#include "report/results.h"
#include "report/svg.h"

// The figures of the report. One that the runs have nothing to show in has no drawings.
namespace carope {

/// One or several drawings, with what to make of them.
struct Figure {
  std::string name;  // of its file, where it has one
  std::string title, caption;
  std::vector<const EncodingRuns*> legend;  // above the drawing
  std::vector<Drawing> drawings;
  int columns = 1;         // that several are drawn in
  std::string style = {};  // class of the <figure>
};

Figure loss_figure(const std::vector<EncodingRuns>& encodings);
Figure length_figure(const std::vector<EncodingRuns>& encodings);
Figure position_figure(const std::vector<EncodingRuns>& encodings);
Figure speed_figure(const std::vector<EncodingRuns>& encodings);

/// What one run's gate learned.
Figure gate_frequencies_figure(const EncodingRuns& encoding, const RunRecord& run);
Figure gate_bases_figure(const EncodingRuns& encoding, const RunRecord& run);
Figure gate_passage_figure(const EncodingRuns& encoding, const RunRecord& run);

/// The first two and all of the passage, as a part of the page. `number` is that of the gate in the
/// page.
std::string gate_figures(const EncodingRuns& encoding, const RunRecord& run, int number);

/// <figure>; empty for a figure without drawings.
std::string to_html(const Figure& figure);

/// A file of its own, that needs nothing beside it.
std::string to_svg(const Figure& figure);

/// A figure of a title, anything that HTML shows, and how to read it.
std::string html_figure(const std::string& title, const std::string& content,
                        const std::string& caption, const std::string& style = "");

}  // namespace carope
