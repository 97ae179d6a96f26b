#include "report/comparison_table.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <span>

#include "report/table.h"
#include "report/text.h"

namespace carope {
namespace {

using Cell = ComparisonTable::Cell;

/// The perplexities that the paper reports for one model, trained at 512.
struct PaperModel {
  std::string name;
  std::int64_t layers, width;
  std::map<std::string, std::array<std::string, 2>> perplexity;  // at 512 and at 1024
};

bool is_paper_model(const PaperModel& model, const std::vector<EncodingRuns>& encodings) {
  return std::all_of(encodings.begin(), encodings.end(), [&](const EncodingRuns& encoding) {
    const RunRecord& run = *encoding.runs.front();
    return run.layers == model.layers && run.width == model.width;
  });
}

/// The model that was run or, where the paper has none such, its smallest.
const PaperModel& paper_model(const std::vector<EncodingRuns>& encodings) {
  static const PaperModel kTiny{"GPT-Tiny",
                                6,
                                512,
                                {{"rope", {"29.33", "81.27"}},
                                 {"carope", {"28.99", "36.74"}},
                                 {"learnable", {"30.48", "–"}},
                                 {"sinusoidal", {"30.62", "223.28"}}}};
  static const PaperModel kSmall{"GPT-Small",
                                 12,
                                 768,
                                 {{"rope", {"21.31", "56.61"}},
                                  {"carope", {"21.23", "21.39"}},
                                  {"learnable", {"21.90", "–"}},
                                  {"sinusoidal", {"22.14", "166.18"}}}};
  return is_paper_model(kSmall, encodings) ? kSmall : kTiny;
}

/// `text` writes a number.
template <class Text>
std::string with_deviation(const Summary& summary, std::size_t runs, const Text& text) {
  return text(summary.mean) + (summary.count > 1 ? " ± " + text(summary.deviation) : "") +
         (summary.count < runs ? fmt::format(" ({} of {} seeds)", summary.count, runs) : "");
}

/// Whether there is no number because there can be none: not every encoding has all positions.
bool is_past_bound(const LengthResult& result) { return result.reason.starts_with("past the "); }

Cell perplexity_cell(const EncodingRuns& encoding, std::int64_t length,
                     const std::string& protocol) {
  std::string text = "";
  std::string hint = "not evaluated";
  for (const RunRecord* run : encoding.runs) {
    const LengthResult* result = result_at(*run, length, protocol);
    if (result != nullptr && !result->perplexity && text != "nan") {
      text = is_past_bound(*result) ? "–" : "nan";
      hint = result->reason;
    }
  }
  if (const auto summary = perplexity_at(encoding, length, protocol)) {
    const auto number = [&](double value) { return perplexity_text(value, summary->mean); };
    return {with_deviation(*summary, encoding.runs.size(), number), false,
            text.empty() ? "" : hint};
  }
  return {text, false, hint};
}

Cell validation_cell(const EncodingRuns& encoding) {
  std::vector<double> losses;
  for (const RunRecord* run : encoding.runs) {
    if (const auto loss = validation_loss(*run)) {
      losses.push_back(*loss);
    }
  }
  const auto number = [](double value) { return fmt::format("{:.4f}", value); };
  const auto summary = summarize(losses);
  return summary ? Cell{with_deviation(*summary, encoding.runs.size(), number), false, ""}
                 : Cell{"", false, "not validated"};
}

/// The lowest of a column, where there is something to be lower than. Equal as shown is equal.
void mark_best(ComparisonTable& table, std::size_t column, const std::vector<double>& values) {
  const auto numbers = std::count_if(values.begin(), values.end(),
                                     [](double value) { return std::isfinite(value); });
  if (numbers < 2) {
    return;
  }
  const std::string lowest = perplexity_text(*std::min_element(values.begin(), values.end()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    table.rows[i].cells[column].best = perplexity_text(values[i]) == lowest;
  }
}

void add_lengths(ComparisonTable& table, const std::vector<EncodingRuns>& encodings,
                 const std::string& protocol = "") {
  for (const std::int64_t length : evaluated_lengths(encodings, protocol)) {
    std::vector<double> means;
    for (std::size_t i = 0; i < encodings.size(); ++i) {
      table.rows[i].cells.push_back(perplexity_cell(encodings[i], length, protocol));
      const auto summary = perplexity_at(encodings[i], length, protocol);
      means.push_back(summary ? summary->mean : std::numeric_limits<double>::infinity());
    }
    mark_best(table, table.columns.size(), means);
    table.columns.push_back({fmt::format("@{}", length)});
  }
}

void add_validation(ComparisonTable& table, const std::vector<EncodingRuns>& encodings) {
  table.columns.push_back({"validation loss"});
  for (std::size_t i = 0; i < encodings.size(); ++i) {
    table.rows[i].cells.push_back(validation_cell(encodings[i]));
  }
}

void add_speed(ComparisonTable& table, const std::vector<EncodingRuns>& encodings) {
  table.columns.push_back({"tokens/s"});
  for (std::size_t i = 0; i < encodings.size(); ++i) {
    const auto speed = speed_of(encodings[i]);
    table.rows[i].cells.push_back({speed ? short_number(speed->mean) : "", false, ""});
  }
}

void add_paper(ComparisonTable& table, const std::vector<EncodingRuns>& encodings) {
  const PaperModel& model = paper_model(encodings);
  const bool same = is_paper_model(model, encodings);
  table.paper = fmt::format("paper, {}, FineWeb-Edu", model.name);
  table.columns.push_back({same ? "@512" : "@512 (1×)", true});
  table.columns.push_back({same ? "@1024" : "@1024 (2×)", true});
  for (std::size_t row = 0; row < encodings.size(); ++row) {
    const auto found = model.perplexity.find(encodings[row].name);
    for (std::size_t i = 0; i < 2; ++i) {
      table.rows[row].cells.push_back(
          {found == model.perplexity.end() ? "" : found->second.at(i), false, ""});
    }
  }
}

void add_paper_note(ComparisonTable& table, const std::vector<EncodingRuns>& encodings) {
  constexpr std::int64_t kPaperTokens = std::int64_t{19'000} * 524'288;
  const PaperModel& model = paper_model(encodings);
  if (!is_paper_model(model, encodings)) {
    table.notes.push_back(
        fmt::format("The paper's columns are another experiment (its {}, trained at 512 for "
                    "19 000 steps of 524 288 tokens): compare orders, not numbers.",
                    model.name));
    return;
  }
  std::int64_t tokens = 0;
  for (const EncodingRuns& encoding : encodings) {
    for (const RunRecord* run : encoding.runs) {
      tokens = std::max(tokens, run->training_tokens);
    }
  }
  table.notes.push_back(fmt::format(
      "The paper trained {} for 19 000 steps of 524 288 tokens at length 512{}.", model.name,
      tokens < kPaperTokens ? fmt::format(", these runs on {} tokens: compare orders, not numbers",
                                          short_number(static_cast<double>(tokens)))
                            : ""));
}

template <class Is>
bool any_cell(const ComparisonTable& table, const Is& is) {
  return std::any_of(table.rows.begin(), table.rows.end(), [&](const auto& row) {
    return std::any_of(row.cells.begin(), row.cells.end(), is);
  });
}

/// Why numbers are missing that there should be.
std::set<std::string> failures(const std::vector<EncodingRuns>& encodings,
                               const std::string& protocol) {
  std::set<std::string> reasons;
  for (const std::int64_t length : evaluated_lengths(encodings, protocol)) {
    for (const EncodingRuns& encoding : encodings) {
      for (const RunRecord* run : encoding.runs) {
        const LengthResult* result = result_at(*run, length, protocol);
        if (result != nullptr && !result->perplexity && !is_past_bound(*result)) {
          reasons.insert(result->reason);
        }
      }
    }
  }
  return reasons;
}

void add_notes(ComparisonTable& table, const std::vector<EncodingRuns>& encodings,
               const std::string& protocol = "") {
  table.measure = evaluated_lengths(encodings, protocol).empty()
                      ? "No run has been evaluated; the loss is the last validation's"
                      : "Perplexity at each window length: lower is better";
  if (any_cell(table, [](const Cell& cell) { return cell.text == "–"; })) {
    table.notes.emplace_back("– where an encoding has no positions.");
  }
  if (const auto reasons = failures(encodings, protocol); !reasons.empty()) {
    table.notes.push_back(
        fmt::format("nan, and seeds that are missing: {}.", fmt::join(reasons, "; ")));
  }
  const auto one_seed = [](const auto& encoding) { return encoding.runs.size() == 1; };
  if (std::all_of(encodings.begin(), encodings.end(), one_seed)) {
    table.notes.emplace_back("One seed each: what another seed would change is not known.");
  } else {
    table.notes.emplace_back("Means over seeds ± their standard deviation.");
    if (std::any_of(encodings.begin(), encodings.end(), one_seed)) {
      table.notes.emplace_back("Without ±: one seed.");
    }
  }
  std::vector<std::string> copies;
  for (const EncodingRuns& encoding : encodings) {
    for (const RunRecord* copy : encoding.copies) {
      copies.push_back(copy->folder.string());
    }
  }
  if (!copies.empty()) {
    table.notes.push_back(
        fmt::format("Copies of other runs, which do not count: {}.", fmt::join(copies, ", ")));
  }
}

/// How to read the table; `marking` says how the lowest stand out, for tables in which some do.
std::vector<std::string> notes_of(const ComparisonTable& table, const std::string& marking) {
  const bool marked = any_cell(table, [](const Cell& cell) { return cell.best; });
  std::vector<std::string> notes{table.measure + (marked ? ", " + marking : "") + "."};
  notes.insert(notes.end(), table.notes.begin(), table.notes.end());
  return notes;
}

ComparisonTable table_of_rows(const std::vector<EncodingRuns>& encodings) {
  ComparisonTable table;
  for (const EncodingRuns& encoding : encodings) {
    table.rows.push_back({encoding.label, encoding.slot, {}});
  }
  return table;
}

constexpr const char* kBold = "the lowest is bold";

/// A sentence in Markdown: what would be HTML is text.
std::string markdown_note(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    escaped += c == '<' ? "&lt;" : c == '&' ? "&amp;" : c == '\n' ? " " : std::string(1, c);
  }
  return escaped;
}

std::string html_heading(const ComparisonTable& table) {
  const auto paper = std::count_if(table.columns.begin(), table.columns.end(),
                                   [](const auto& column) { return column.paper; });
  const auto own = static_cast<std::ptrdiff_t>(table.columns.size()) - paper;
  std::string html = fmt::format(
      "<thead><tr><td></td><th colspan=\"{}\">this experiment</th><th class=\"paper\" "
      "colspan=\"{}\">{}</th></tr>\n<tr><th class=\"name\">encoding</th>",
      own, paper, escape_html(table.paper));
  for (const auto& column : table.columns) {
    html += fmt::format("<th{}>{}</th>", column.paper ? " class=\"paper\"" : "",
                        escape_html(column.heading));
  }
  return html + "</tr></thead>\n";
}

}  // namespace

ComparisonTable compare(const std::vector<EncodingRuns>& encodings, const std::string& protocol) {
  ComparisonTable table = table_of_rows(encodings);
  add_lengths(table, encodings, protocol);
  add_notes(table, encodings, protocol);
  return table;
}

ComparisonTable compare(const std::vector<EncodingRuns>& encodings) {
  ComparisonTable table = table_of_rows(encodings);
  if (evaluated_lengths(encodings).empty()) {
    add_validation(table, encodings);
  } else {
    add_lengths(table, encodings);
  }
  add_speed(table, encodings);
  add_paper(table, encodings);
  add_notes(table, encodings);
  add_paper_note(table, encodings);
  return table;
}

std::string to_markdown(const ComparisonTable& table) {
  std::string heading = "| encoding |";
  std::string rule = "|---|";
  for (const auto& column : table.columns) {
    heading += fmt::format(" {}{} |", column.paper ? table.paper + " " : "", column.heading);
    rule += "---:|";
  }
  std::string text = heading + "\n" + rule + "\n";
  for (const auto& row : table.rows) {
    text += fmt::format("| {} |", markdown_cell(row.label));
    for (const Cell& cell : row.cells) {
      text += cell.best ? fmt::format(" **{}** |", cell.text) : fmt::format(" {} |", cell.text);
    }
    text += "\n";
  }
  std::vector<std::string> notes = notes_of(table, kBold);
  std::transform(notes.begin(), notes.end(), notes.begin(), markdown_note);
  return text + fmt::format("\n{}\n", fmt::join(notes, " "));
}

std::string to_html(const ComparisonTable& table) {
  std::string html = "<div class=\"scroll\"><table class=\"results\">\n" + html_heading(table);
  html += "<tbody>\n";
  for (const auto& row : table.rows) {
    html += fmt::format("<tr><th class=\"name\"><span class=\"swatch s{}\"></span>{}</th>",
                        row.slot, escape_html(row.label));
    for (std::size_t i = 0; i < row.cells.size(); ++i) {
      const Cell& cell = row.cells[i];
      html +=
          fmt::format("<td{}{}>{}</td>", table.columns[i].paper ? " class=\"paper\"" : "",
                      cell.hint.empty() ? "" : fmt::format(" title=\"{}\"", escape_html(cell.hint)),
                      cell.best ? fmt::format("<strong>{}</strong>", escape_html(cell.text))
                                : escape_html(cell.text));
    }
    html += "</tr>\n";
  }
  return html + fmt::format("</tbody></table></div>\n<p class=\"note\">{}</p>\n",
                            escape_html(fmt::format("{}", fmt::join(notes_of(table, kBold), " "))));
}

std::string to_text(const ComparisonTable& table) {
  std::vector<std::string> heading{"encoding"};
  for (const auto& column : table.columns) {
    heading.push_back((column.paper ? "paper " : "") + column.heading);
  }
  Table text(heading);
  for (const auto& row : table.rows) {
    std::vector<std::string> cells{row.label};
    for (const Cell& cell : row.cells) {
      cells.push_back(cell.text + (cell.best ? "*" : " "));
    }
    text.add(cells);
  }
  return text.text() + fmt::format("\n{}\n(paper: {})\n",
                                   fmt::join(notes_of(table, "* marks the lowest"), "\n"),
                                   table.paper.substr(table.paper.find(' ') + 1));
}

}  // namespace carope
