#include "dist/communicator.h"
#include "dist/mpi.h"
#include "dist/nccl.h"

namespace carope {

std::unique_ptr<Communicator> make_communicator(const Launch& launched, Device device,
                                                std::chrono::seconds timeout) {
  const bool on_gpu = device.kind == DeviceKind::kCuda;
  Launch launch = launched;
  launch.on_gpu = on_gpu;
  // One rank that was told where to meet others goes the way of many: so that can be tried.
  const bool tries = on_gpu && launch.launcher == Launcher::kTorchrun && nccl::compiled();
  if (launch.world_size == 1 && !tries) {
    return make_alone();
  }
  check<ConfigError>(timeout.count() >= 1, "a timeout of {} s is too short; give 1 or more",
                     timeout.count());
  if (on_gpu) {
    return nccl::make_ranks(launch, device.index, timeout);
  }
  check<ConfigError>(
      !mpi::compiled() || launch.launcher != Launcher::kTorchrun,
      "RANK and WORLD_SIZE = {} in the environment say that several processes are to train "
      "together, which on CPUs goes by MPI: start them by mpirun -np {} (or srun --mpi=pmix), or "
      "use --device cuda",
      launch.world_size, launch.world_size);
  return mpi::make_ranks(launch, timeout);
}

}  // namespace carope
