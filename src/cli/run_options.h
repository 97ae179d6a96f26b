#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "train/run_config.h"

namespace carope {

/// A configuration file and settings that override it.
class RunOptions {
 public:
  /// Adds --config and takes every --section.key that the command does not know itself.
  static std::shared_ptr<RunOptions> add(CLI::App& command);
  /// The same without --config, for a command that knows where its configuration comes from.
  static std::shared_ptr<RunOptions> add_overrides(CLI::App& command);

  /// The file's settings with those of the command line over them.
  Settings settings() const;
  /// Some settings with those of the command line over them.
  Settings overridden(Settings settings) const;

 private:
  CLI::App* command_ = nullptr;
  std::string file_;
};

}  // namespace carope
