#include "cli/run_options.h"

#include "core/error.h"

namespace carope {

std::shared_ptr<RunOptions> RunOptions::add(CLI::App& command) {
  auto options = std::make_shared<RunOptions>();
  options->command_ = &command;
  command.add_option("--config", options->file_, "a TOML file; without it, the defaults");
  command.allow_extras();
  command.footer("Every setting of the file can be given as --section.key VALUE.");
  return options;
}

Settings RunOptions::settings() const {
  Settings settings = file_.empty() ? Settings{} : load_settings(file_, run_sections());
  const std::vector<std::string> rest = command_->remaining();
  for (std::size_t i = 0; i < rest.size(); ++i) {
    std::string name = rest[i];
    check<ConfigError>(name.starts_with("--") && name.find('.') != std::string::npos,
                       "'{}' is not an option; settings are given as --section.key VALUE", name);
    name = name.substr(2);
    if (const std::size_t equals = name.find('='); equals != std::string::npos) {
      set(settings, name.substr(0, equals), name.substr(equals + 1), run_sections());
      continue;
    }
    check<ConfigError>(i + 1 < rest.size(), "--{} has no value", name);
    set(settings, name, rest[++i], run_sections());
  }
  return settings;
}

}  // namespace carope
