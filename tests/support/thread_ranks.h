#pragma once

#include <functional>

#include "dist/communicator.h"

namespace carope::test {

/// When an operation on tensors happens: at either end of the time in which it may. What is right
/// with both waits neither too little before an operation nor after it.
enum class When : std::uint8_t { kAtOnce, kAtJoin };

/// Calls body(communicator) for every rank, each on a thread of this process, with CPU tensors.
/// When one throws, the others do so where they wait for it, and its exception leaves.
void run_ranks(int ranks, When when, const std::function<void(Communicator&)>& body);

}  // namespace carope::test
