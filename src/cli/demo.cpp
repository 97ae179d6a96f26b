#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <memory>

#include "cli/commands.h"
#include "dist/launch.h"
#include "position/registry.h"
#include "report/table.h"
#include "train/comparison.h"

namespace carope {
namespace {

struct DemoOptions {
  ComparisonConfig comparison;
  std::vector<std::string> encodings = encoding_names();
  int threads = 0;
};

/// A line that rewrites itself on a terminal, and a line now and then in a log.
void show_progress(const std::string& encoding, std::int64_t step, std::int64_t steps,
                   double loss) {
  const bool terminal = isatty(STDERR_FILENO) != 0;
  if (terminal) {
    fmt::print(stderr, "\r{:<12} step {:>5} of {}  loss {:.3f} ", encoding, step, steps, loss);
    if (step == steps) {
      fmt::print(stderr, "\r{:60}\r", "");
    }
  } else if (step % 100 == 0 || step == steps) {
    fmt::print(stderr, "{} step {} of {} loss {:.3f}\n", encoding, step, steps, loss);
  }
}

void run_demo(const DemoOptions& options) {
  const ComparisonConfig& config = options.comparison;
  require_single_process(launch_from_environment());
  for (const std::string& encoding : options.encodings) {
    make_encoding(encoding, config.model.shape(), {},
                  {});  // a misspelt name must not wait for its turn
  }
  Context ctx = Context::cpu(options.threads);
  fmt::print(
      "Recall: every row repeats a random pattern of {} to {} tokens out of {}; a model must find "
      "what followed\n"
      "the last time. {} layers, width {}, trained at length {} for {} steps of {} rows. "
      "Perplexity of the\n"
      "repeated tokens (1 is perfect, {} is guessing), at and past the training length:\n\n",
      config.task.shortest, config.task.longest, config.task.vocabulary, config.model.layers,
      config.model.width, config.model.length, config.steps, config.batch, config.task.vocabulary);
  std::vector<std::string> header{"encoding"};
  for (const std::int64_t length : config.lengths) {
    header.push_back(fmt::format("@{}", length));
  }
  header.emplace_back("tokens/s");
  Table table(std::move(header));
  std::fflush(stdout);
  for (const std::string& encoding : options.encodings) {
    const ComparisonResult result = train_and_score(
        ctx, config, encoding,
        [&](std::int64_t step, double loss) { show_progress(encoding, step, config.steps, loss); });
    std::vector<std::string> row{result.encoding};
    for (const auto& loss : result.losses) {
      row.push_back(loss ? fmt::format("{:.2f}", std::exp(*loss)) : "-");
    }
    row.push_back(fmt::format("{:.0f}", result.tokens_per_second));
    table.add(std::move(row));
  }
  fmt::print("{}", table.text());
}

}  // namespace

void add_demo(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "demo", "Trains a small model with each encoding on a recall task and compares them");
  auto options = std::make_shared<DemoOptions>();
  command->add_option("--encodings", options->encodings, "which to train, separated by commas")
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--steps", options->comparison.steps)
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--seed", options->comparison.task.seed)->capture_default_str();
  command->add_option("--threads", options->threads, "0: every core")->capture_default_str();
  command->callback([options] { run_demo(*options); });
}

}  // namespace carope
