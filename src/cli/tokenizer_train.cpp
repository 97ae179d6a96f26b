#include <fmt/format.h>

#include <memory>

#include "cli/commands.h"
#include "cli/options.h"
#include "core/error.h"
#include "core/file.h"
#include "core/progress.h"
#include "data/tokenizer/tokenizer_training.h"

namespace carope {
namespace {

struct TokenizerTrainOptions {
  std::vector<std::filesystem::path> inputs;
  std::filesystem::path out = "tokenizer.json";
  std::int64_t vocabulary = 8192;
  CorpusFormat format;
  int threads = 0;
};

void train(const TokenizerTrainOptions& options) {
  check<ConfigError>(
      options.out.extension() == ".json" || std::filesystem::is_directory(options.out),
      "--out {} does not end in .json, by which other commands know a tokenizer; "
      "name it so",
      options.out.string());
  make_folder(options.out.parent_path());
  const PieceCounter pieces = count_pieces(options.inputs, options.format, options.threads);
  const Tokenizer tokenizer = [&] {
    Progress progress("Merging", options.vocabulary, "tokens");
    return train_tokenizer(pieces, options.vocabulary,
                           [&](std::int64_t tokens) { progress.advance_to(tokens); });
  }();
  save_tokenizer(tokenizer, options.out);
  fmt::print("{}: {} tokens, of which {} are merges\n", options.out.string(), tokenizer.size(),
             tokenizer.definition().merges.size());
  if (tokenizer.size() < options.vocabulary) {
    fmt::print("The text has no more pairs that occur twice; for {} tokens it must be longer.\n",
               options.vocabulary);
  }
}

}  // namespace

void add_tokenizer_train(CLI::App& tokenizer) {
  CLI::App* command = tokenizer.add_subcommand(
      "train", "Learns a byte-level BPE from text and saves it as a tokenizer.json");
  const auto options = std::make_shared<TokenizerTrainOptions>();
  command->add_option("--vocab", options->vocabulary, "tokens: 256 bytes, merges and end of text")
      ->required()
      ->check(CLI::Range(std::int64_t{257}, kLargestVocabulary));
  command->add_option("--out", options->out, "the file to write")->capture_default_str();
  add_threads_option(*command, options->threads);
  add_corpus_options(*command, options->format, options->inputs);
  command->callback([options] { train(*options); });
}

}  // namespace carope
