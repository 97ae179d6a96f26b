#include <fmt/format.h>

#include <memory>

#include "cli/commands.h"
#include "core/error.h"
#include "report/comparison_table.h"
#include "report/document.h"
#include "report/page.h"

namespace carope {
namespace {

struct ReportOptions {
  std::vector<std::filesystem::path> folders;
  std::filesystem::path out;
  std::string title;
  bool parts = false;
};

void report(ReportOptions options) {
  const RunCollection collection = load_runs(options.folders);
  if (options.out.empty()) {
    check<ConfigError>(options.folders.size() == 1 && is_experiment(options.folders.front()),
                       "a report on runs needs a folder to be written into; give --out FOLDER");
    options.out = options.folders.front();
  }
  for (const std::filesystem::path& run : collection.not_begun) {
    fmt::print(stderr, "{} has not been begun and is left out\n", run.string());
  }
  if (options.title.empty()) {
    options.title = collection.title.empty() ? "A comparison" : collection.title;
  }
  write_report(options.out, options.title, collection.runs);
  if (options.parts) {
    write_document_parts(options.out / "parts", group_runs(collection.runs));
  }
  fmt::print("{}{}\n", to_text(compare(group_runs(collection.runs))),
             (options.out / "report.html").string());
}

}  // namespace

void add_report(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("report", "Compares runs in a table and a page with figures");
  const auto options = std::make_shared<ReportOptions>();
  command->add_option("runs", options->folders, "folders of runs, or of an experiment")->required();
  command->add_option("--out", options->out,
                      "folder for results.json, table.md and report.html; by default that of the "
                      "experiment");
  command->add_option("--title", options->title, "heading of the page");
  command->add_flag(
      "--parts", options->parts,
      "also write every table as Markdown and every figure as SVG, into OUT/parts, for "
      "documents");
  command->callback([options] { report(*options); });
}

}  // namespace carope
