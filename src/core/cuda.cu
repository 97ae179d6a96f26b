#include "core/cuda.h"

#include <cuda_runtime.h>

#include "core/error.h"

namespace carope::cuda {
namespace {

void check_cuda(cudaError_t status, const char* statement, const char* file, int line) {
  if (status != cudaSuccess) {
    cudaGetLastError();  // the runtime keeps an error that is not fatal; a later check must not see
                         // it
    throw DeviceError(std::string(file) + ":" + std::to_string(line) + ": " + statement + ": " +
                      cudaGetErrorString(status));
  }
}

#define CUDA_CHECK(statement) check_cuda((statement), #statement, __FILE__, __LINE__)

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

}  // namespace

bool compiled() { return true; }

std::vector<DeviceInfo> devices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();  // no driver or no device is an answer, not an error to report later
    return {};
  }
  std::vector<DeviceInfo> found;
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties{};
    CUDA_CHECK(cudaGetDeviceProperties(&properties, i));
    found.push_back({properties.name, properties.major, properties.minor,
                     properties.multiProcessorCount, properties.totalGlobalMem});
  }
  return found;
}

std::shared_ptr<void> make_stream(int device) {
  const CurrentDevice current(device);
  cudaStream_t stream = nullptr;
  CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return {stream, [](void* owned) { cudaStreamDestroy(static_cast<cudaStream_t>(owned)); }};
}

void* allocate(int device, std::size_t bytes) {
  const CurrentDevice current(device);
  void* data = nullptr;
  CUDA_CHECK(cudaMalloc(&data, bytes));
  return data;
}

void release(int device, void* data) noexcept {
  int previous = 0;
  cudaGetDevice(&previous);
  cudaSetDevice(device);
  cudaFree(data);
  cudaSetDevice(previous);
}

void clear(int device, void* data, std::size_t bytes) {
  const CurrentDevice current(device);
  CUDA_CHECK(cudaMemset(data, 0, bytes));
}

void copy_to_device(int device, void* to, const void* from, std::size_t bytes) {
  const CurrentDevice current(device);
  CUDA_CHECK(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice));
}

void copy_to_host(int device, void* to, const void* from, std::size_t bytes) {
  const CurrentDevice current(device);
  CUDA_CHECK(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost));
}

}  // namespace carope::cuda
