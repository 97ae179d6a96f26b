#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <map>
#include <set>

#include "fake_gpus.h"

// What the fake GPUs remember.
namespace carope::fake {

struct Stream {
  int device;
  bool captures = false;
};

struct Allocation {
  std::size_t bytes;
  int device;
};

struct State {
  std::vector<Gpu> gpus;
  Asked asked;
  std::vector<std::string> launched;
  std::map<std::uintptr_t, Allocation> memory;  // by address
  std::set<Stream*> streams;
  std::map<std::pair<const void*, int>, int> shared_limits;  // of a kernel on a device
  cudaError_t last_error = cudaSuccess;
  cudaError_t start_error = cudaSuccess;

  int current() const;
  const Gpu& current_gpu() const { return gpus.at(static_cast<std::size_t>(current())); }
  /// The device of an address and so many bytes after it, or -1.
  int device_of(const void* address, std::size_t bytes = 1) const;
  bool captures() const;
};
State& state();

/// Keeps an error for cudaGetLastError().
cudaError_t refuse(cudaError_t error);
/// Whether something may be given to a stream now.
cudaError_t check_stream(cudaStream_t stream);

}  // namespace carope::fake
