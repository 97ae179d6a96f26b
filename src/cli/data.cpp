#include "cli/commands.h"

namespace carope {

void add_data(CLI::App& app) {
  CLI::App* command = app.add_subcommand("data", "Fetches datasets")->require_subcommand(1);
  add_data_fetch(*command);
}

}  // namespace carope
