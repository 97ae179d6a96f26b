#include "cli/run_options.h"

#include <fmt/ranges.h>

#include <ranges>

#include "core/error.h"
#include "train/presets.h"

namespace carope {

std::shared_ptr<RunOptions> RunOptions::add(CLI::App& command) {
  auto options = add_overrides(command);
  command.add_option("--config", options->file_,
                     fmt::format("a TOML file, or one of {}; without it, the defaults",
                                 fmt::join(std::views::keys(presets()), ", ")));
  return options;
}

std::shared_ptr<RunOptions> RunOptions::add_overrides(CLI::App& command) {
  auto options = std::make_shared<RunOptions>();
  options->command_ = &command;
  command.allow_extras();
  command.footer("Every setting of the configuration can be given as --section.key VALUE.");
  return options;
}

Settings RunOptions::settings() const {
  return overridden(file_.empty() ? Settings{} : load_run_settings(file_));
}

Settings RunOptions::overridden(Settings settings) const {
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
