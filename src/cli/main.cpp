#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/lost_file.h"
#include "cli/streams.h"
#include "cli/waiting.h"
#include "core/error.h"
#include "core/options.h"
#include "core/progress.h"
#include "core/version.h"
#include "dist/launch.h"

namespace {

/// Refuses words that are no command, with the nearest one; CLI11 would only ask for a command.
void check_commands(const CLI::App& app, int argc, char** argv) {
  const CLI::App* parent = &app;
  for (int i = 1; i < argc; ++i) {
    std::vector<std::string> names;
    const CLI::App* named = nullptr;
    for (const CLI::App* command : parent->get_subcommands([](const CLI::App*) { return true; })) {
      names.push_back(command->get_name());
      named = command->check_name(argv[i]) ? command : named;
    }
    if (names.empty() || argv[i][0] == '-') {
      return;
    }
    carope::check<carope::ConfigError>(named != nullptr,
                                       "unknown command '{}'; did you mean '{}'? See carope --help",
                                       argv[i], carope::nearest(argv[i], names));
    parent = named;
  }
}

/// Does what the words ask for and returns the program's status; help is asked for, too.
int do_command(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
    return 0;
  } catch (const CLI::ParseError& end) {
    return app.exit(end);
  }
}

}  // namespace

int main(int argc, char** argv) {
  carope::open_closed_streams();
  carope::wait_without_spinning(argv);
  carope::watch_for_interrupts();
  carope::explain_lost_files();
  CLI::App app("Trains GPT-2-class language models with pluggable positional encodings.");
  app.name("carope");
  app.set_version_flag("--version", std::string(carope::version()));
  app.require_subcommand(1);
  carope::add_config(app);
  carope::add_data(app);
  carope::add_devices(app);
  carope::add_encodings(app);
  carope::add_eval(app);
  carope::add_generate(app);
  carope::add_inspect(app);
  carope::add_report(app);
  carope::add_reproduce(app);
  carope::add_tokenizer(app);
  carope::add_train(app);
  try {
    check_commands(app, argc, argv);
    const int status = do_command(app, argc, argv);
    carope::finish_output();
    return status;
  } catch (const std::exception& error) {
    carope::tell(fmt::format("carope: {}{}\n", carope::speaker(), error.what()));
    return 1;
  }
}
