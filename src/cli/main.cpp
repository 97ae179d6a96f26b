#include <fmt/format.h>

#include <algorithm>

#include "cli/commands.h"
#include "core/error.h"
#include "core/options.h"

namespace {

/// Refuses a first word that is no command, with the nearest one; CLI11 would only ask for a
/// command.
void check_command(const CLI::App& app, const std::string& word) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
  }
  const bool known = std::find(names.begin(), names.end(), word) != names.end();
  carope::check<carope::ConfigError>(known || word.starts_with("-"),
                                     "unknown command '{}'; did you mean '{}'? See carope --help",
                                     word, carope::nearest(word, names));
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Trains GPT-2-class language models with pluggable positional encodings.");
  app.name("carope");
  app.set_version_flag("--version", CAROPE_VERSION);
  app.require_subcommand(1);
  carope::add_data(app);
  carope::add_demo(app);
  carope::add_devices(app);
  carope::add_encodings(app);
  try {
    if (argc > 1) {
      check_command(app, argv[1]);
    }
    CLI11_PARSE(app, argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "carope: {}\n", error.what());
    return 1;
  }
  return 0;
}
