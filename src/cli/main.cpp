#include <fmt/format.h>

#include "cli/commands.h"
#include "core/error.h"

int main(int argc, char** argv) {
  CLI::App app("Trains GPT-2-class language models with pluggable positional encodings.");
  app.name("carope");
  app.set_version_flag("--version", CAROPE_VERSION);
  app.require_subcommand(1);
  carope::add_demo(app);
  carope::add_devices(app);
  carope::add_encodings(app);
  try {
    CLI11_PARSE(app, argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "carope: {}\n", error.what());
    return 1;
  }
  return 0;
}
