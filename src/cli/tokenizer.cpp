#include "cli/commands.h"

namespace carope {

void add_tokenizer(CLI::App& app) {
  CLI::App* tokenizer = app.add_subcommand("tokenizer", "Turns text into tokens and back");
  tokenizer->require_subcommand(1);
  add_tokenizer_encode(*tokenizer);
  add_tokenizer_decode(*tokenizer);
  add_tokenizer_train(*tokenizer);
  add_tokenizer_fetch(*tokenizer);
}

}  // namespace carope
