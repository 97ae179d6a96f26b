#include <fmt/format.h>

#include <memory>
#include <optional>

#include "cli/commands.h"
#include "cli/options.h"
#include "core/progress.h"
#include "data/fetch/cache.h"
#include "data/synth/synth.h"

namespace carope {
namespace {

struct SynthOptions {
  SynthConfig config;
  SynthAmount amount;
  std::string out, tokenizer;
  int threads = 0;
};

void run_synth(const SynthOptions& options) {
  SynthAmount amount = options.amount;
  std::optional<Tokenizer> tokenizer;
  if (!options.tokenizer.empty()) {
    tokenizer = Tokenizer::load(tokenizer_path(options.tokenizer));
    amount.tokenizer = &*tokenizer;
  }
  const SynthTotals totals =
      write_synth_corpus(options.config, amount, options.threads, options.out);
  fmt::print(stderr, "{}: {} documents, {}{}\n",
             options.out.empty() ? "standard output" : options.out, totals.documents,
             si(static_cast<double>(totals.bytes), "B"),
             totals.tokens > 0 ? fmt::format(", {} tokens", totals.tokens) : "");
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
  command->add_option("--seed", options->config.seed)->check(at_least(0))->capture_default_str();
  add_threads_option(*command, options->threads);
  const auto add_amount = [&](const std::string& name, SynthUnit unit, const std::string& what) {
    return command
        ->add_option_function<std::int64_t>(
            name,
            [options, unit](std::int64_t count) {
              options->amount = {unit, count};
            },
            what)
        ->transform(as_quantity());
  };
  CLI::Option* documents =
      add_amount("--documents", SynthUnit::kDocuments, "how many documents (100)");
  CLI::Option* bytes = add_amount("--bytes", SynthUnit::kBytes,
                                  "whole documents until their text has so many bytes");
  CLI::Option* tokens = add_amount(
      "--tokens", SynthUnit::kTokens,
      "whole documents until they have so many tokens, counted by --tokenizer or, without "
      "one, as words, numbers and marks");
  add_tokenizer_option(*command, options->tokenizer)->needs(tokens);
  documents->excludes(bytes)->excludes(tokens);
  bytes->excludes(tokens);
  command->callback([options] { run_synth(*options); });
}

}  // namespace carope
