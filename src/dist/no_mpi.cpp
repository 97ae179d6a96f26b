#include "core/error.h"
#include "dist/mpi.h"

namespace carope::mpi {

bool compiled() { return false; }

std::unique_ptr<Communicator> make_ranks(const Launch& launch, std::chrono::seconds,
                                         std::function<std::string()>) {
  throw ConfigError(fmt::format(
      "{} processes were launched, but this program was built without MPI, by which processes on "
      "CPUs train together; install OpenMPI (libopenmpi-dev, openmpi-bin), configure and build "
      "again, or start it without a launcher",
      launch.world_size));
}

}  // namespace carope::mpi
