#include "data/synth.h"

#include <fmt/format.h>

#include <map>
#include <memory>

#include "cli/commands.h"
#include "core/progress.h"

namespace carope {
namespace {

struct SynthOptions {
  SynthConfig config;
  SynthAmount amount;
  std::string out;
  int threads = 0;
};

const std::map<std::string, std::int64_t>& suffixes() {
  static const std::map<std::string, std::int64_t> kSuffixes{
      {"k", 1'000}, {"M", 1'000'000}, {"B", 1'000'000'000}};
  return kSuffixes;
}

void run_synth(const SynthOptions& options) {
  const SynthTotals totals =
      write_synth_corpus(options.config, options.amount, options.threads, options.out);
  const std::string tokens =
      totals.tokens > 0 ? fmt::format(", {} words and marks", totals.tokens) : std::string();
  fmt::print(stderr, "{}: {} documents, {}B{}\n",
             options.out.empty() ? "standard output" : options.out, totals.documents,
             si(static_cast<double>(totals.bytes)), tokens);
}

}  // namespace

void add_data_synth(CLI::App& data) {
  CLI::App* command = data.add_subcommand(
      "synth", "Writes a corpus of invented school-book chapters, the same for the same seed");
  auto options = std::make_shared<SynthOptions>();
  command->add_option(
      "--out", options->out,
      "a .jsonl file, or a .txt file with the line <|endoftext|> between documents; without it, "
      ".jsonl on standard output");
  command->add_option("--seed", options->config.seed)->capture_default_str();
  command->add_option("--threads", options->threads, "0: every core")->capture_default_str();
  const auto add_amount = [&](const std::string& name, SynthUnit unit, const std::string& what) {
    return command
        ->add_option_function<std::int64_t>(
            name,
            [options, unit](std::int64_t count) {
              options->amount = {unit, count};
            },
            what)
        ->transform(
            CLI::AsNumberWithUnit(suffixes(), CLI::AsNumberWithUnit::CASE_SENSITIVE, "N[k|M|B]"));
  };
  CLI::Option* documents =
      add_amount("--documents", SynthUnit::kDocuments, "how many documents (100)");
  CLI::Option* bytes = add_amount("--bytes", SynthUnit::kBytes,
                                  "whole documents until their text has so many bytes");
  CLI::Option* tokens =
      add_amount("--tokens", SynthUnit::kTokens,
                 "whole documents until they have so many words, numbers and marks; a tokenizer "
                 "may cut these further");
  documents->excludes(bytes)->excludes(tokens);
  bytes->excludes(tokens);
  command->callback([options] { run_synth(*options); });
}

}  // namespace carope
