#include "core/cuda.h"

#include "core/cuda_check.h"

namespace carope::cuda {
namespace {

__global__ void do_nothing() {}

/// Throws unless the current device can run this program's kernels.
void require_kernels(int device) {
  cudaFuncAttributes attributes{};
  const cudaError_t status = cudaFuncGetAttributes(&attributes, do_nothing);
  if (status != cudaErrorNoKernelImageForDevice && status != cudaErrorInvalidDeviceFunction) {
    CUDA_CHECK(status);
    return;
  }
  cudaGetLastError();  // a later check must not see it
  const DeviceInfo info = devices().at(static_cast<std::size_t>(device));
  throw DeviceError(fmt::format(
      "cuda:{} is of compute capability {}.{} ({}), for which this program has no kernels: {}, or "
      "use --device cpu",
      device, info.compute_major, info.compute_minor, info.name,
      is_served(info) ? "build it again where that GPU is present" : "8.0 is needed"));
}

}  // namespace

bool compiled() { return true; }

std::vector<DeviceInfo> devices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();  // a later check must not see it
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

std::string trouble() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  cudaGetLastError();  // a later check must not see it
  int driver = 0;
  if (status == cudaSuccess || status == cudaErrorNoDevice ||
      cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
    return {};
  }
  const auto version = [](int number) {
    return fmt::format("{}.{}", number / 1000, number % 1000 / 10);
  };
  return fmt::format("{} (the driver is for CUDA {}, this program for {})",
                     cudaGetErrorString(status), version(driver), version(CUDART_VERSION));
}

std::shared_ptr<void> make_stream(int device) {
  CUDA_CHECK(cudaSetDevice(device));  // for good: a kernel goes to a stream of the current device
  require_kernels(device);
  cudaStream_t stream = nullptr;
  CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return {stream, [](void* owned) { cudaStreamDestroy(static_cast<cudaStream_t>(owned)); }};
}

void* allocate(int device, std::size_t bytes) {
  const CurrentDevice current(device);
  void* data = nullptr;
  const cudaError_t status = cudaMalloc(&data, bytes);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // nothing is broken: a later check must not see it
    std::size_t free = 0;
    std::size_t total = 0;
    CUDA_CHECK(cudaMemGetInfo(&free, &total));
    constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
    throw OutOfMemory(fmt::format(
        "cuda:{} has {:.2f} GiB free of {:.1f}, but {:.2f} GiB are needed at once; end what else "
        "uses the GPU, or ask for less: fewer rows (--train.micro_batch) or parameters in a "
        "training, shorter windows or texts elsewhere, or --device cpu",
        device, static_cast<double>(free) / kGiB, static_cast<double>(total) / kGiB,
        static_cast<double>(bytes) / kGiB));
  }
  CUDA_CHECK(status);
  return data;
}

void release(int device, void* data) noexcept {
  int previous = 0;
  cudaGetDevice(&previous);
  cudaSetDevice(device);
  cudaFree(data);
  cudaSetDevice(previous);
}

void clear_on_stream(void* stream, void* data, std::size_t bytes) {
  CUDA_CHECK(cudaMemsetAsync(data, 0, bytes, static_cast<cudaStream_t>(stream)));
}

void upload_on_stream(void* stream, void* to, const void* from, std::size_t bytes) {
  CUDA_CHECK(
      cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, static_cast<cudaStream_t>(stream)));
}

void download_on_stream(void* stream, void* to, const void* from, std::size_t bytes) {
  CUDA_CHECK(
      cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, static_cast<cudaStream_t>(stream)));
}

void copy_on_stream(void* stream, void* to, const void* from, std::size_t bytes) {
  CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice,
                             static_cast<cudaStream_t>(stream)));
}

void wait_for_stream(void* stream) {
  CUDA_CHECK(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)));
}

std::shared_ptr<void> allocate_pinned(std::size_t bytes) {
  void* data = nullptr;
  CUDA_CHECK(cudaMallocHost(&data, bytes));
  return {data, [](void* owned) { cudaFreeHost(owned); }};
}

std::shared_ptr<void> record_graph(void* stream, const std::function<void()>& issue) {
  const auto on = static_cast<cudaStream_t>(stream);
  CUDA_CHECK(cudaStreamBeginCapture(on, cudaStreamCaptureModeThreadLocal));
  cudaGraph_t graph = nullptr;
  try {
    issue();
  } catch (...) {
    cudaStreamEndCapture(on, &graph);  // or the stream could not be used again
    cudaGraphDestroy(graph);
    cudaGetLastError();  // there may have been no graph to destroy
    throw;
  }
  CUDA_CHECK(cudaStreamEndCapture(on, &graph));
  cudaGraphExec_t executable = nullptr;
  const cudaError_t status = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  CUDA_CHECK(status);
  return {executable,
          [](void* owned) { cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(owned)); }};
}

void launch_graph(void* stream, void* graph) {
  CUDA_CHECK(
      cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), static_cast<cudaStream_t>(stream)));
}

void clear(int device, void* data, std::size_t bytes) {
  const CurrentDevice current(device);
  CUDA_CHECK(cudaDeviceSynchronize());
  CUDA_CHECK(cudaMemset(data, 0, bytes));
  CUDA_CHECK(cudaDeviceSynchronize());
}

void copy_to_device(int device, void* to, const void* from, std::size_t bytes) {
  const CurrentDevice current(device);
  CUDA_CHECK(cudaDeviceSynchronize());
  CUDA_CHECK(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice));
  // What comes from pageable memory may still be on its way, which other streams do not wait for.
  CUDA_CHECK(cudaDeviceSynchronize());
}

void copy_to_host(int device, void* to, const void* from, std::size_t bytes) {
  const CurrentDevice current(device);
  CUDA_CHECK(cudaDeviceSynchronize());
  CUDA_CHECK(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost));
}

}  // namespace carope::cuda
