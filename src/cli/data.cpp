#include "cli/commands.h"

namespace carope {

void add_data(CLI::App& app) {
  CLI::App* data = app.add_subcommand("data", "Makes and examines training data");
  data->require_subcommand(1);
  add_data_inspect(*data);
}

}  // namespace carope
