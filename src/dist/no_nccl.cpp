#include "core/error.h"
#include "dist/nccl.h"

namespace carope::nccl {

bool compiled() { return false; }

std::unique_ptr<Communicator> make_ranks(const Launch& launch, int, std::chrono::seconds) {
  throw ConfigError(fmt::format(
      "{} processes were launched, but this program was built without NCCL, by which processes on "
      "GPUs train together; install NCCL (libnccl-dev), configure and build again, or start it "
      "without a launcher",
      launch.world_size));
}

}  // namespace carope::nccl
