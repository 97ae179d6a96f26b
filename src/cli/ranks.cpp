#include "cli/ranks.h"

#include "cli/options.h"
#include "dist/launch.h"

namespace carope {

void add_rank_options(CLI::App& command, RankOptions& options) {
  command
      .add_option("--timeout", options.timeout,
                  "seconds after which processes that work together give up on one that is silent")
      ->check(at_least(1))
      ->capture_default_str();
}

Workplace open_workplace(const ComputeOptions& compute, const RankOptions& ranks) {
  const Launch launch = launch_from_environment();
  Context ctx = open_context(compute, launch);
  auto communicator = make_communicator(launch, ctx.device(), std::chrono::seconds(ranks.timeout));
  return {std::move(ctx), std::move(communicator)};
}

}  // namespace carope
