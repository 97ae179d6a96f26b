#pragma once

#include <cuda_runtime.h>

#include "core/error.h"

// For the CUDA part alone.
namespace carope::cuda {

/// Throws a DeviceError that names the statement and the place unless it succeeded.
inline void check_cuda(cudaError_t status, const char* statement, const char* file, int line) {
  if (status != cudaSuccess) {
    cudaGetLastError();  // the runtime keeps an error that is not fatal; a later check must not see
                         // it
    throw DeviceError(std::string(file) + ":" + std::to_string(line) + ": " + statement + ": " +
                      cudaGetErrorString(status));
  }
}

#define CUDA_CHECK(statement) \
  ::carope::cuda::check_cuda((statement), #statement, __FILE__, __LINE__)

/// Makes a device current for one scope.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device) {
    CUDA_CHECK(cudaGetDevice(&previous_));
    CUDA_CHECK(cudaSetDevice(device));
  }
  ~CurrentDevice() { cudaSetDevice(previous_); }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  int previous_ = 0;
};

}  // namespace carope::cuda
