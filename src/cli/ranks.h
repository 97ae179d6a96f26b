#pragma once

#include <CLI/CLI.hpp>
#include <memory>

#include "cli/compute.h"
#include "dist/communicator.h"

namespace carope {

/// How a command works with the other processes that a launcher started.
struct RankOptions {
  std::int64_t timeout = 60;  // seconds
};

void add_rank_options(CLI::App& command, RankOptions& options);

/// The processes that work together, and where this one computes.
struct Workplace {
  Context ctx;
  std::unique_ptr<Communicator> ranks;

  /// Whether this is the one that writes files and tells the user.
  bool first() const { return ranks->rank() == 0; }
};

/// Joins the other processes, where there are any. On GPUs each rank of a machine has its own.
Workplace open_workplace(const ComputeOptions& compute, const RankOptions& ranks);

}  // namespace carope
