#pragma once

#include <chrono>
#include <memory>

#include "dist/communicator.h"

// For make_communicator; a build without NCCL links no_nccl.cpp.
namespace carope::nccl {

/// Whether this build has NCCL.
bool compiled();

/// The ranks that a launcher started, each with a GPU of its own, for tensors there.
std::unique_ptr<Communicator> make_ranks(const Launch& launch, int device,
                                         std::chrono::seconds timeout);

}  // namespace carope::nccl
