#pragma once

namespace carope {

/// Which of how many processes this one is, as a launcher says in the environment.
struct Launch {
  int rank = 0;
  int world_size = 1;
};

/// Reads RANK and WORLD_SIZE (torchrun), OpenMPI's or Slurm's variables; alone where none are set.
/// Values that make no sense are a ConfigError.
Launch launch_from_environment();

/// Throws where a launcher started several processes: each would train the whole model by itself.
void require_single_process(const Launch& launch);

}  // namespace carope
