#pragma once

#include <cstdint>
#include <string>

namespace carope {

/// What started the processes of a run.
enum class Launcher : std::uint8_t { kNone, kOpenMpi, kSlurm, kTorchrun };

/// Which of how many processes this one is, as a launcher says in the environment.
struct Launch {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;  // among the ranks of this machine
  Launcher launcher = Launcher::kNone;
  std::string address{};  // where rank 0 can be met over TCP; empty where nobody said
  int port = 0;           // there
  std::string job = "-";  // tells this job's ranks from those of others; has no spaces
  bool on_gpu = false;    // what this one computes on, which a launcher does not say
};

/// Reads OpenMPI's, Slurm's or torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and
/// MASTER_PORT); alone where none are set. Values that make no sense are a ConfigError.
Launch launch_from_environment();

/// The GPU for this rank where `visible` of them can be used: its own number, or the only one where
/// the launcher shows every rank a different one. Too few GPUs are a ConfigError.
int gpu_of_rank(const Launch& launch, int visible);

/// This machine's name, without spaces.
std::string host_name();

/// "rank 3 on HOST: " before what a rank has to say; empty for a run of one process, or where the
/// environment makes no sense.
std::string speaker();

/// The first name of a list of hosts as Slurm writes it, e.g. n007 of "n[007-009,12],login".
std::string first_host(const std::string& hosts);

}  // namespace carope
