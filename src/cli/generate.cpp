#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "cli/commands.h"
#include "cli/compute.h"
#include "cli/interrupt.h"
#include "cli/options.h"
#include "cli/streams.h"
#include "core/progress.h"
#include "generate/generator.h"
#include "generate/vocabulary.h"
#include "generate/whole_characters.h"
#include "train/checkpoint.h"

namespace carope {
namespace {

struct GenerateOptions {
  std::filesystem::path run;
  std::string prompt, prompt_file, tokenizer, rope_scaling;
  GenerateConfig config;
  bool ignore_end = false;
  ComputeOptions compute;
};

std::string read_prompt(const GenerateOptions& options) {
  if (options.prompt == "-" || options.prompt_file == "-") {
    return read_input("");
  }
  return options.prompt_file.empty() ? options.prompt : read_input(options.prompt_file);
}

/// How fast it went, for standard error: the text alone is on standard output.
void show_rates(std::int64_t prompt, const Generated& result) {
  const auto rate = [](std::int64_t tokens, double seconds) {
    return si(static_cast<double>(tokens) / std::max(seconds, 1e-9), "tokens");
  };
  fmt::print(stderr, "prompt: {} tokens, {}/s\n", prompt, rate(prompt, result.prompt_seconds));
  fmt::print(stderr, "continuation: {} tokens{}", result.tokens.size(),
             result.ended ? " and end of text" : "");
  if (result.steps > 0) {
    fmt::print(stderr, ", {}/s", rate(result.steps, result.step_seconds));
  }
  fmt::print(stderr, "\n");
}

void generate_text(const GenerateOptions& options) {
  const std::filesystem::path checkpoint = find_checkpoint(options.run);
  RunConfig run = saved_config(checkpoint);
  if (!options.rope_scaling.empty()) {
    scale_rope(run.model, options.rope_scaling);
  }
  const Tokenizer tokenizer = tokenizer_of(run, options.tokenizer);
  const std::string text = read_prompt(options);
  const std::vector<TokenId> prompt = prompt_tokens(tokenizer, text);
  const auto length = static_cast<std::int64_t>(prompt.size());
  GenerateConfig config = options.config;
  config.allowed = known_tokens(tokenizer);
  config.end = options.ignore_end ? std::nullopt : tokenizer.end_of_text();

  Context ctx = open_context(options.compute);
  Gpt model(run.model, ctx.device(), ctx.compute());
  load_weights(checkpoint, model);
  const PoliteStop stop;
  WholeCharacters characters;
  std::optional<Progress> progress(std::in_place, "Reading the prompt", length, "tokens");
  const Generated result = generate(
      ctx, model, prompt, config,
      {.read =
           [&](std::int64_t read) {
             progress->advance_to(read);
             if (read == length) {
               progress.reset();  // its line must not stand in the text
               write_output(characters.add(text));
             }
           },
       .token = [&](TokenId token) { write_output(characters.add(tokenizer.text_of(token))); }},
      stop.asked());
  if (!progress) {
    write_output(characters.finish() + "\n");
    show_rates(length, result);
  }
  if (stop.asked()) {
    throw CLI::RuntimeError(kInterrupted);
  }
}

}  // namespace

void add_generate(CLI::App& app) {
  CLI::App* command = app.add_subcommand("generate", "Continues a text with a trained model");
  const auto options = std::make_shared<GenerateOptions>();
  SamplerConfig& sampler = options->config.sampler;
  command->add_option("run", options->run, "a run's folder, or one of its checkpoints")->required();
  CLI::Option* prompt =
      command->add_option("--prompt", options->prompt, "the text to continue; -: standard input");
  command->add_option("--prompt-file", options->prompt_file, "a file with it; -: standard input")
      ->excludes(prompt);
  command->add_option("--tokens", options->config.tokens, "new tokens, at most")
      ->transform(as_quantity())
      ->capture_default_str();
  command
      ->add_option("--temperature", sampler.temperature,
                   "logits are divided by it; 0: always the most likely token")
      ->capture_default_str();
  command->add_option("--top-k", sampler.top_k, "only the k most likely tokens; 0: all")
      ->capture_default_str();
  command
      ->add_option("--top-p", sampler.top_p,
                   "of these, the fewest that together have this probability")
      ->capture_default_str();
  command->add_option("--seed", sampler.seed)->check(at_least(0))->capture_default_str();
  add_tokenizer_option(*command, options->tokenizer);
  command->add_option("--chunk", options->config.chunk, "tokens of the prompt to read at once")
      ->transform(as_quantity())
      ->capture_default_str();
  command
      ->add_option("--rope-scaling", options->rope_scaling,
                   "scale RoPE for longer texts, as NAME:FACTOR: linear, ntk, dynamic_ntk, yarn "
                   "or llama3, e.g. yarn:4")
      ->check(not_empty());
  command->add_flag("--ignore-end", options->ignore_end, "go on behind the end of the text");
  add_compute_options(*command, options->compute);
  command->footer(
      "The tokenizer is by default the copy beside the run's data. Before the prompt the model "
      "reads\n<|endoftext|>, as before every text it was trained on; so an empty prompt begins a "
      "text.");
  command->callback([options] { generate_text(*options); });
}

}  // namespace carope
