#include "report/page.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "core/file.h"
#include "core/progress.h"
#include "core/version.h"
#include "report/comparison_table.h"
#include "report/figures.h"
#include "report/text.h"

namespace carope {
namespace {

/// What the runs have in common, or the different things they have, in their order.
template <class Describe>
std::string common(const std::vector<EncodingRuns>& encodings, const Describe& describe) {
  std::vector<std::string> seen;
  for (const EncodingRuns& encoding : encodings) {
    for (const RunRecord* run : encoding.runs) {
      const std::string text = describe(*run);
      if (!text.empty() && std::find(seen.begin(), seen.end(), text) == seen.end()) {
        seen.push_back(text);
      }
    }
  }
  return fmt::format("{}", fmt::join(seen, "; "));
}

std::string data_name(const RunRecord& run) {
  const auto section = run.settings.find("data");
  const std::filesystem::path path =
      OptionReader("data", section == run.settings.end() ? Options{} : section->second)
          .text("path", "");
  const std::string name = (path.has_filename() ? path : path.parent_path()).filename().string();
  return run.data_sha256.empty() ? name
                                 : fmt::format("{} ({})", name, run.data_sha256.substr(0, 8));
}

std::string facts(const std::vector<EncodingRuns>& encodings) {
  std::string html = "<dl class=\"facts\">";
  const auto add = [&](const char* name, const std::string& value) {
    if (!value.empty()) {
      html += fmt::format("<div><dt>{}</dt><dd>{}</dd></div>", name, escape_html(value));
    }
  };
  add("model", common(encodings, [](const RunRecord& run) {
        return fmt::format("{} layers, {} heads, width {}, vocabulary {}", run.layers, run.heads,
                           run.width, grouped(static_cast<double>(run.vocabulary)));
      }));
  add("training", common(encodings, [](const RunRecord& run) {
        return fmt::format("{} in {} steps, windows of {}",
                           si(static_cast<double>(run.training_tokens), "tokens"),
                           grouped(static_cast<double>(run.steps)), run.length);
      }));
  add("data", common(encodings, data_name));
  add("evaluation", common(encodings, [](const RunRecord& run) {
        return run.evaluation
                   ? fmt::format("{}, {}", run.evaluation->protocol,
                                 si(static_cast<double>(run.evaluation->tokens), "tokens"))
                   : std::string();
      }));
  std::set<std::int64_t> seeds;
  for (const EncodingRuns& encoding : encodings) {
    for (const RunRecord* run : encoding.runs) {
      seeds.insert(run->seed);
    }
  }
  add(seeds.size() == 1 ? "seed" : "seeds", fmt::format("{}", fmt::join(seeds, ", ")));
  add("made with", "carope " + common(encodings, [](const RunRecord& run) { return run.version; }));
  return html + "</dl>\n";
}

/// Who is lowest at a length, and whose interval says that it might not be.
std::string finding(const std::vector<EncodingRuns>& encodings, std::int64_t length) {
  const EncodingRuns* best = nullptr;
  double lowest = 0.0;
  std::size_t compared = 0;
  for (const EncodingRuns& encoding : encodings) {
    if (const auto summary = perplexity_at(encoding, length)) {
      ++compared;
      if (best == nullptr || summary->mean < lowest) {
        best = &encoding;
        lowest = summary->mean;
      }
    }
  }
  if (compared < 2) {
    return "";
  }
  std::vector<std::string> rivals;
  const auto interval = interval_at(*best, length);
  for (const EncodingRuns& encoding : encodings) {
    const auto other = interval_at(encoding, length);
    if (&encoding != best && interval && other && other->low <= interval->high) {
      rivals.push_back(encoding.label);
    }
  }
  const std::string names = escape_html(fmt::format("{}", fmt::join(rivals, " and ")));
  const std::string doubt =
      rivals.empty()       ? ""
      : rivals.size() <= 2 ? fmt::format(" <em>(intervals overlap: {})</em>", names)
                           : fmt::format(" <em title=\"{}\">(intervals of {} others overlap)</em>",
                                         names, rivals.size());
  return fmt::format("<li><span>at {}</span> <strong>{}</strong> {}{}</li>", length,
                     escape_html(best->label), perplexity_text(lowest), doubt);
}

std::string findings(const std::vector<EncodingRuns>& encodings) {
  std::string items;
  for (const std::int64_t length : evaluated_lengths(encodings)) {
    items += finding(encodings, length);
  }
  return items.empty()
             ? ""
             : "<p class=\"lead\">Lowest perplexity</p><ul class=\"findings\">" + items + "</ul>\n";
}

std::string gate_section(const std::vector<EncodingRuns>& encodings) {
  std::string html;
  int number = 0;
  for (const EncodingRuns& encoding : encodings) {
    const auto run = std::find_if(encoding.runs.begin(), encoding.runs.end(),
                                  [](const RunRecord* each) { return each->gate.has_value(); });
    if (run != encoding.runs.end()) {
      html += fmt::format(
          "<section>\n<h1>What the gate of {} learned{}</h1>\n<div class=\"figures\">\n{}"
          "</div>\n</section>\n",
          escape_html(encoding.label),
          encoding.runs.size() > 1 ? fmt::format(", seed {}", (*run)->seed) : "",
          gate_figures(encoding, **run, number++));
    }
  }
  return html;
}

std::string configurations(const std::vector<EncodingRuns>& encodings) {
  std::string html = "<section>\n<h1>Configurations</h1>\n";
  for (const EncodingRuns& encoding : encodings) {
    for (const RunRecord* run : encoding.runs) {
      html += fmt::format(
          "<details><summary><span class=\"swatch s{}\"></span>{}, seed {}</summary>\n"
          "<pre>{}</pre></details>\n",
          encoding.slot, escape_html(encoding.label), run->seed,
          escape_html(to_toml(run->settings)));
    }
  }
  return html + "</section>\n";
}

}  // namespace

std::string report_page(const std::string& title, const std::vector<EncodingRuns>& encodings) {
  const std::string by_length = to_html(length_figure(encodings));
  const std::string missing =
      by_length.empty() ? "<p class=\"note\">No run here has been evaluated at several lengths, so "
                          "there is nothing to show past training.</p>\n"
                        : "";
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light "
      "dark\">\n<title>{0}</title>\n<style>\n{1}</style>\n"
      "</head>\n<body>\n<main>\n<header>\n<p class=\"kicker\">positional encodings compared</p>\n"
      "<h1>{0}</h1>\n{2}</header>\n<section>\n{3}{4}{5}</section>\n<section "
      "class=\"figures\">\n{6}{7}{8}{9}</section>\n{10}{11}<footer>Written by carope {12}. The "
      "numbers are in results.json beside this page.</footer>\n</main>\n<script>\n{13}</script>\n"
      "</body>\n</html>\n",
      escape_html(title), page_style(), facts(encodings), findings(encodings),
      to_html(compare(encodings)), missing, by_length, to_html(position_figure(encodings)),
      to_html(loss_figure(encodings)), to_html(speed_figure(encodings)), gate_section(encodings),
      configurations(encodings), version(), page_script());
}

void write_report(const std::filesystem::path& folder, const std::string& title,
                  const std::vector<RunRecord>& runs) {
  check<ConfigError>(!runs.empty(), "there is no run to report on; name at least one");
  const std::vector<EncodingRuns> encodings = group_runs(runs);
  const std::string page = report_page(title, encodings);
  make_folder(folder);
  write_file(folder / "results.json", results_json(encodings));
  write_file(folder / "table.md",
             "# " + escape_html(title) + "\n\n" + to_markdown(compare(encodings)));
  write_file(folder / "report.html", page);
}

}  // namespace carope
