#include "cli/commands.h"

namespace carope {

void add_tokenizer(CLI::App& app) {
  CLI::App* command = app.add_subcommand("tokenizer", "Fetches tokenizers")->require_subcommand(1);
  add_tokenizer_fetch(*command);
}

}  // namespace carope
