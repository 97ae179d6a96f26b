#include <fmt/ranges.h>

#include <memory>

#include "cli/commands.h"
#include "cli/compute.h"
#include "cli/options.h"
#include "eval/gate.h"
#include "model/statistics.h"
#include "report/table.h"
#include "train/checkpoint.h"
#include "train/run_data.h"

namespace carope {
namespace {

struct InspectOptions {
  std::filesystem::path checkpoint;
  std::filesystem::path data;
  std::int64_t tokens = 16'384;
  std::size_t words = 0;
  ComputeOptions compute;
};

void print_parameters(const Gpt& model) {
  Table table({"parameter", "shape", "mean", "deviation", "largest"});
  for (const ParameterStatistics& one : parameter_statistics(model)) {
    table.add({one.name, to_string(one.shape), fmt::format("{:.2e}", one.mean),
               fmt::format("{:.2e}", one.deviation), fmt::format("{:.2e}", one.largest)});
  }
  fmt::print("{}{} parameters in all\n", table.text(), model.parameter_count());
}

void print_gate(const GateStatistics& gate) {
  fmt::print(
      "\nThe gate over {} tokens: frequency f by layer and head, and the base of the RoPE "
      "whose f is their geometric mean\n\n",
      gate.tokens);
  Table table(
      {"layer", "head", "mean", "deviation", "lowest", "5 %", "median", "95 %", "highest", "base"});
  const auto shown = [](double f) { return fmt::format("{:.4f}", f); };
  for (const HeadFrequencies& head : gate.gates) {
    table.add({std::to_string(head.layer), std::to_string(head.head), shown(head.mean),
               shown(head.deviation), shown(head.lowest), shown(head.quantiles[0]),
               shown(head.quantiles[2]), shown(head.quantiles[4]), shown(head.highest),
               fmt::format("{:.4g}", head.base)});
  }
  fmt::print("{}", table.text());
}

/// Words as a terminal shows them: quoted, since most begin with a space.
std::string quoted(const std::vector<WordFrequency>& words, std::size_t most) {
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < std::min(most, words.size()); ++i) {
    texts.push_back(fmt::format("{:?} {:.3f}", words[i].word, words[i].mean));
  }
  return fmt::format("{}", fmt::join(texts, "  "));
}

void print_words(const GateStatistics& gate, std::size_t most) {
  fmt::print(
      "\nThe tokens that hold the clock back and those that turn it on, by their mean f, and how "
      "much "
      "of the variance of f the token alone explains\n\n");
  for (const HeadFrequencies& head : gate.gates) {
    fmt::print("layer {} head {}, {:.0f} %\n  slow: {}\n  fast: {}\n", head.layer, head.head,
               100.0 * head.token_share, quoted(head.slowest, most), quoted(head.fastest, most));
  }
}

void inspect(const InspectOptions& options) {
  const auto checkpoint = find_checkpoint(options.checkpoint);
  RunConfig config = saved_config(checkpoint);
  Context ctx = open_context(options.compute);
  const Gpt model(config.model, ctx.device(), ctx.compute());
  load_weights(checkpoint, model);
  const RunState state = checkpoint_state(checkpoint);
  fmt::print(
      "{}: {}, {} layers, {} heads, width {}, vocabulary {}, trained at length {} for {} "
      "steps, {} tokens\n\n",
      checkpoint.string(), config.model.encoding, config.model.layers, config.model.heads,
      config.model.width, config.model.vocabulary, config.model.length, state.step, state.tokens);
  print_parameters(model);
  if (gate_of(model.encoding()) == nullptr) {
    fmt::print("\nThe encoding '{}' has no gate.\n", config.model.encoding);
    return;
  }
  if (!options.data.empty()) {
    require_same_tokenizer(config, options.data);
    config.data.path = options.data.string();
    require_data(config);
  }
  if (!std::filesystem::exists(config.data.path)) {
    fmt::print(
        "\nThe gate depends on the text, and the run's data {} is not there; name a folder "
        "of shards with --data.\n",
        config.data.path);
    return;
  }
  const std::optional<Tokenizer> tokenizer = load_tokenizer_beside_data(config);
  const auto gate = measure_gate(ctx, model, *open_validation(config, 1), options.tokens,
                                 tokenizer ? &*tokenizer : nullptr);
  print_gate(*gate);
  if (options.words > 0) {
    print_words(*gate, options.words);
  }
}

}  // namespace

void add_inspect(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "inspect", "Prints a checkpoint's parameters, and what its gate does to the validation text");
  const auto options = std::make_shared<InspectOptions>();
  command
      ->add_option("checkpoint", options->checkpoint, "a run's folder, or one of its checkpoints")
      ->required();
  command->add_option("--data", options->data, "folder of token shards; by default the run's own");
  command->add_option("--tokens", options->tokens, "of the text to look at the gate with")
      ->transform(as_quantity())
      ->capture_default_str();
  command
      ->add_option("--words", options->words,
                   "also the tokens with the lowest and the highest f, so many of each head")
      ->check(CLI::Range(0, 10));
  add_compute_options(*command, options->compute);
  command->callback([options] { inspect(*options); });
}

}  // namespace carope
