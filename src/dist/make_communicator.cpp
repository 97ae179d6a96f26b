#include "dist/communicator.h"
#include "dist/mpi.h"

namespace carope {

std::unique_ptr<Communicator> make_communicator(const Launch& launch, Device device,
                                                std::chrono::seconds timeout) {
  if (launch.world_size == 1) {
    return make_alone();
  }
  check<ConfigError>(timeout.count() >= 1, "a timeout of {} s is too short; give 1 or more",
                     timeout.count());
  check<ConfigError>(device.kind == DeviceKind::kCpu, "ranks on GPUs are not part of this build");
  check<ConfigError>(
      !mpi::compiled() || launch.launcher != Launcher::kTorchrun,
      "RANK and WORLD_SIZE = {} in the environment say that several processes are to train "
      "together, which on CPUs goes by MPI: start them by mpirun -np {} (or srun --mpi=pmix), or "
      "use --device cuda",
      launch.world_size, launch.world_size);
  return mpi::make_ranks(launch, timeout);
}

}  // namespace carope
