#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <functional>
#include <map>
#include <set>

#include "fake_gpus.h"

// What the fake GPUs remember.
namespace carope::fake {

inline constexpr int kMostWide = 0x7FFFFFFF;  // blocks of a grid

/// What a GPU that computes does in a stream.
using Work = std::function<cudaError_t()>;

struct Stream {
  int device;
  bool captures = false;
  std::vector<Work> captured = {};
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
  std::string fault;  // that a kernel was stopped for

  int current() const;
  const Gpu& current_gpu() const { return gpus.at(static_cast<std::size_t>(current())); }
  /// The device of an address and so many bytes after it, or -1.
  int device_of(const void* address, std::size_t bytes = 1) const;
  bool captures() const { return capturing() != nullptr; }
  Stream* capturing() const;
  bool computes() const { return current_gpu().computes; }
};
State& state();

/// Keeps an error for cudaGetLastError().
cudaError_t refuse(cudaError_t error);
/// Does it, or keeps it for the graph that is captured.
cudaError_t give(Work work);
/// The same of what begins when all before it is done, as no kernel does that is launched early.
cudaError_t give_in_order(Work work);
/// Whether something may be given to a stream now.
cudaError_t check_stream(cudaStream_t stream);

}  // namespace carope::fake
