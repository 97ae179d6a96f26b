#include "report/document.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <set>

#include "core/file.h"
#include "core/progress.h"
#include "report/comparison_table.h"
#include "report/figures.h"
#include "report/text.h"

namespace carope {
namespace {

using Row = std::vector<std::string>;

/// Rows of cells, the first of which is the heading. Cells are Markdown.
std::string markdown(const std::vector<Row>& rows) {
  std::string text;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    text += fmt::format("| {} |\n", fmt::join(rows[i], " | "));
    if (i == 0) {
      text += "|---|";
      for (std::size_t column = 1; column < rows[i].size(); ++column) {
        text += "---:|";
      }
      text += "\n";
    }
  }
  return text;
}

/// A token as code in a cell. Most begin with a space, which is seen as one.
std::string word_cell(const WordGate& word) {
  std::string shown;
  for (const char c : word.word) {
    shown += c == ' ' ? "␣" : c == '\n' ? "↵" : c == '\t' ? "⇥" : std::string(1, c);
  }
  return fmt::format("<code>{}</code> {:.3f}", markdown_cell(shown), word.mean);
}

std::string word_cell(const std::vector<WordGate>& words) {
  std::vector<std::string> cells;
  for (const WordGate& word : words) {
    cells.push_back(word_cell(word));
  }
  return fmt::format("{}", fmt::join(cells, ", "));
}

/// A label may hold anything; a file's name may not.
std::string file_name(std::string name) {
  std::replace_if(
      name.begin(), name.end(),
      [](unsigned char c) { return std::isalnum(c) == 0 && c != '-' && c != '.' && c != '_'; },
      '_');
  return name;
}

/// What others are compared with.
const EncodingRuns& reference_of(const std::vector<EncodingRuns>& encodings) {
  const auto rope =
      std::find_if(encodings.begin(), encodings.end(),
                   [](const EncodingRuns& encoding) { return encoding.label == "rope"; });
  return rope == encodings.end() ? encodings.front() : *rope;
}

/// `most` seeds have another length.
std::string difference_cell(const std::optional<EncodingDifference>& difference, std::size_t most) {
  if (!difference) {
    return "–";
  }
  const auto& [seeds, text] = *difference;
  return fmt::format("{:+.4f}{}{}{}", seeds.mean,
                     seeds.count > 1 ? fmt::format(" ± {:.4f}", seeds.deviation) : "",
                     text ? fmt::format(" [{:+.4f}, {:+.4f}]", text->low, text->high) : "",
                     seeds.count < most ? fmt::format(" ({} of {} seeds)", seeds.count, most) : "");
}

std::string differences(const std::vector<EncodingRuns>& encodings, const std::string& protocol) {
  const EncodingRuns& reference = reference_of(encodings);
  const auto lengths = evaluated_lengths(encodings, protocol);
  std::vector<Row> rows{{"encoding", "seeds"}};
  for (const std::int64_t length : lengths) {
    rows[0].push_back(fmt::format("@{}", length));
  }
  for (const EncodingRuns& encoding : encodings) {
    if (&encoding == &reference) {
      continue;
    }
    std::vector<std::optional<EncodingDifference>> found;
    std::size_t most = 0;
    for (const std::int64_t length : lengths) {
      found.push_back(difference_at(encoding, reference, length, protocol));
      most = std::max(most, found.back() ? found.back()->seeds.count : 0);
    }
    Row row{markdown_cell(encoding.label), std::to_string(most)};
    for (const auto& difference : found) {
      row.push_back(difference_cell(difference, most));
    }
    rows.push_back(row);
  }
  return markdown(rows) +
         fmt::format(
             "\nLoss minus that of {}, in nats a token, below zero where it is better: the mean "
             "over "
             "seeds that both have, ± the standard deviation of these differences, and in brackets "
             "the 95 % interval of the mean that other text would leave it in (paired, by "
             "bootstrap).\n",
             markdown_cell(reference.label));
}

std::string cost(const std::vector<EncodingRuns>& encodings) {
  const EncodingRuns& reference = reference_of(encodings);
  std::vector<Row> rows{{"encoding", "runs", "tokens/s", "lowest run", "highest run",
                         "of " + markdown_cell(reference.label), "memory, GiB"}};
  std::set<std::string> devices;
  for (const EncodingRuns& encoding : encodings) {
    std::vector<double> speeds;
    double memory = 0.0;
    for (const RunRecord* run : encoding.runs) {
      if (const auto speed = speed_of(*run)) {
        speeds.push_back(*speed);
      }
      memory = std::max(memory, run->memory_bytes.value_or(0.0));
      if (!run->device.empty()) {
        devices.insert(run->device + ", " + run->precision);
      }
    }
    const auto speed = summarize(speeds);
    if (!speed) {
      continue;
    }
    const auto [lowest, highest] = std::minmax_element(speeds.begin(), speeds.end());
    const auto ratio = relative_speed(encoding, reference);
    rows.push_back({markdown_cell(encoding.label), std::to_string(encoding.runs.size()),
                    short_number(speed->mean), short_number(*lowest), short_number(*highest),
                    ratio ? fmt::format("{:.3f}", *ratio) : "",
                    memory > 0.0 ? fmt::format("{:.2f}", memory / (1 << 30)) : ""});
  }
  return markdown(rows) +
         fmt::format(
             "\nTokens of training a second: the median over a run's steps, their mean over runs, "
             "and the median over seeds of what they are of {}'s. Memory is what weights, "
             "gradients, moments and activations of a micro-batch take. {}\n",
             markdown_cell(reference.label),
             devices.empty() ? "" : fmt::format("On {}.", fmt::join(devices, "; ")));
}

/// The first run of each encoding whose gate was looked at.
std::vector<std::pair<const EncodingRuns*, const RunRecord*>> gates_of(
    const std::vector<EncodingRuns>& encodings) {
  std::vector<std::pair<const EncodingRuns*, const RunRecord*>> gates;
  for (const EncodingRuns& encoding : encodings) {
    const auto run = std::find_if(encoding.runs.begin(), encoding.runs.end(),
                                  [](const RunRecord* each) { return each->gate.has_value(); });
    if (run != encoding.runs.end()) {
      gates.emplace_back(&encoding, *run);
    }
  }
  return gates;
}

std::string heading_of(const EncodingRuns& encoding, const RunRecord& run) {
  return fmt::format("\n**{}**, seed {}, over {}:\n\n", markdown_cell(encoding.label), run.seed,
                     si(static_cast<double>(run.gate->tokens), "tokens"));
}

std::string gate(const EncodingRuns& encoding, const RunRecord& run) {
  std::vector<Row> rows{{"layer", "head", "mean f", "deviation", "5 %", "median", "95 %", "base",
                         "explained by the token"}};
  for (const HeadGate& head : run.gate->gates) {
    rows.push_back(
        {std::to_string(head.layer), std::to_string(head.head), fmt::format("{:.4f}", head.mean),
         fmt::format("{:.4f}", head.deviation), fmt::format("{:.4f}", head.quantiles[0]),
         fmt::format("{:.4f}", head.quantiles[2]), fmt::format("{:.4f}", head.quantiles[4]),
         fmt::format("{:.4g}", head.base),
         std::isfinite(head.token_share) ? fmt::format("{:.0f} %", 100.0 * head.token_share) : ""});
  }
  return heading_of(encoding, run) + markdown(rows);
}

std::string words(const EncodingRuns& encoding, const RunRecord& run) {
  constexpr std::size_t kHeads = 6;
  const std::vector<const HeadGate*> heads = telling_heads(*run.gate, kHeads);
  if (heads.empty()) {
    return "";
  }
  std::vector<Row> rows{{"layer, head", "mean f", "deviation", "explained by the token",
                         "tokens that hold the clock back", "tokens that turn it on"}};
  for (const HeadGate* head : heads) {
    rows.push_back({fmt::format("{}, {}", head->layer, head->head),
                    fmt::format("{:.3f}", head->mean), fmt::format("{:.3f}", head->deviation),
                    fmt::format("{:.0f} %", 100.0 * head->token_share), word_cell(head->slowest),
                    word_cell(head->fastest)});
  }
  return heading_of(encoding, run) + markdown(rows);
}

}  // namespace

void write_document_parts(const std::filesystem::path& folder,
                          const std::vector<EncodingRuns>& encodings) {
  make_folder(folder);
  const auto write = [&](const std::string& name, const std::string& text) {
    if (!text.empty()) {
      write_file(folder / name, text);
    }
  };
  for (const std::string protocol : {"", "sliding", "last"}) {
    if (!evaluated_lengths(encodings, protocol).empty()) {
      const std::string end = (protocol.empty() ? "" : "-" + protocol) + ".md";
      write("perplexity" + end,
            to_markdown(protocol.empty() ? compare(encodings) : compare(encodings, protocol)));
      write("differences" + end, differences(encodings, protocol));
    }
  }
  write("cost.md", cost(encodings));
  std::vector<Figure> figures{length_figure(encodings), position_figure(encodings),
                              loss_figure(encodings), speed_figure(encodings)};
  std::string gate_tables, word_tables;
  for (const auto& [encoding, run] : gates_of(encodings)) {
    gate_tables += gate(*encoding, *run);
    word_tables += words(*encoding, *run);
    figures.push_back(gate_frequencies_figure(*encoding, *run));
    figures.push_back(gate_bases_figure(*encoding, *run));
    figures.push_back(gate_passage_figure(*encoding, *run));
  }
  write("gate.md", gate_tables);
  write("words.md", word_tables);
  for (const Figure& figure : figures) {
    if (!figure.drawings.empty()) {
      write(file_name(figure.name) + ".svg", to_svg(figure));
    }
  }
}

}  // namespace carope
