#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "dist/communicator.h"

// For make_communicator; a build without MPI links no_mpi.cpp.
namespace carope::mpi {

/// Whether this build has MPI.
bool compiled();

/// The ranks that mpirun or srun started, for tensors on the CPU. `ailing` is as for Watch.
std::unique_ptr<Communicator> make_ranks(const Launch& launch, std::chrono::seconds timeout,
                                         std::function<std::string()> ailing = {});

}  // namespace carope::mpi
