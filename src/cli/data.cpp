#include "cli/commands.h"

namespace carope {

void add_data(CLI::App& app) {
  CLI::App* data = app.add_subcommand("data", "Makes text to train on")->require_subcommand(1);
  add_data_synth(*data);
}

}  // namespace carope
