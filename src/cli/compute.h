#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "core/context.h"
#include "dist/launch.h"

namespace carope {

/// Where and how a command computes.
struct ComputeOptions {
  std::string device = "auto";
  std::string precision = "auto";
  bool deterministic = false;
  bool recompute = false;
  int threads = 0;
};

void add_compute_options(CLI::App& command, ComputeOptions& options);

/// For commands that train.
void add_recompute_option(CLI::App& command, ComputeOptions& options);

/// A GPU where there is one and nothing else was asked for: the first, or that of the rank.
Context open_context(const ComputeOptions& options, const Launch& launch = {});

}  // namespace carope
