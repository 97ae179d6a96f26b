#include "cli/commands.h"

namespace carope {

void add_data(CLI::App& app) {
  CLI::App* data =
      app.add_subcommand("data", "Makes token shards out of text, and looks into them");
  data->require_subcommand(1);
  add_data_prepare(*data);
  add_data_inspect(*data);
  add_data_fetch(*data);
  add_data_synth(*data);
}

}  // namespace carope
