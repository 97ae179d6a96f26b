#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/run_options.h"

namespace carope {

void add_config(CLI::App& app) {
  CLI::App* config = app.add_subcommand("config", "Shows configurations")->require_subcommand(1);
  CLI::App* show = config->add_subcommand("show", "Prints a configuration with all its defaults");
  const auto options = RunOptions::add(*show);
  show->callback([options] { fmt::print("{}", to_toml(read_run(options->settings()).resolved)); });
}

}  // namespace carope
