#pragma once

#include <string>
#include <vector>

#include "report/results.h"

// The figures of the report, each a <figure> of HTML with a line on how to read it; empty where the
// runs have nothing to show.
namespace carope {

std::string loss_figure(const std::vector<EncodingRuns>& encodings);
std::string length_figure(const std::vector<EncodingRuns>& encodings);
std::string position_figure(const std::vector<EncodingRuns>& encodings);
std::string speed_figure(const std::vector<EncodingRuns>& encodings);

/// What one run's gate learned: frequencies, bases and a passage of text; several figures.
/// `number` is that of the gate in the page.
std::string gate_figures(const EncodingRuns& encoding, const RunRecord& run, int number);

/// A figure of a title, an image and how to read it.
std::string figure(const std::string& title, const std::string& content, const std::string& caption,
                   const std::string& style = "");

}  // namespace carope
