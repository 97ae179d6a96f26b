// CUDA's runtime, as far as this program calls it: devices, memory, streams and graphs.
#include <cuda.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "ptx/program.h"
#include "ptx/tensor_map.h"
#include "state.h"

namespace carope::fake {
namespace {

thread_local int current_device = 0;

/// A file in memory of what are no numbers. Memory that shows it takes room only once it is
/// written.
constexpr std::size_t kPattern = std::size_t{64} << 20;
int pattern() {
  static const int made = [] {
    constexpr int kNoNumber = 0xFF;
    const int file = memfd_create("unwritten", 0);
    void* const memory = ftruncate(file, kPattern) == 0
                             ? mmap(nullptr, kPattern, PROT_WRITE, MAP_SHARED, file, 0)
                             : MAP_FAILED;
    if (memory != MAP_FAILED) {
      std::memset(memory, kNoNumber, kPattern);
      munmap(memory, kPattern);
    }
    return file;
  }();
  return made;
}

/// Memory that nobody can touch, or full of what are no numbers.
void* reserve(std::size_t bytes, bool computes) {
  void* const memory =
      mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return nullptr;
  }
  if (computes) {
    for (std::size_t at = 0; at < bytes; at += kPattern) {
      if (mmap(static_cast<std::byte*>(memory) + at, std::min(kPattern, bytes - at),
               PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, pattern(),
               0) == MAP_FAILED) {
        return nullptr;
      }
    }
    ptx::allocations().add(reinterpret_cast<std::uintptr_t>(memory), bytes);
  }
  return memory;
}

std::size_t free_bytes(int device) {
  std::size_t used = 0;
  for (const auto& [address, allocation] : state().memory) {
    used += allocation.device == device ? allocation.bytes : 0;
  }
  return state().gpus.at(static_cast<std::size_t>(device)).memory_bytes - used;
}

cudaError_t copy_memory(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  const bool to_device = kind != cudaMemcpyDeviceToHost;
  const bool from_device = kind != cudaMemcpyHostToDevice;
  if ((to_device && state().device_of(to, bytes) < 0) ||
      (from_device && state().device_of(from, bytes) < 0)) {
    return refuse(cudaErrorInvalidValue);
  }
  if (state().computes()) {
    return give_in_order([=] {
      std::memcpy(to, from, bytes);
      return cudaSuccess;
    });
  }
  if (!to_device) {
    std::memset(to, 0, bytes);
  }
  return cudaSuccess;
}

cudaError_t set_memory(void* memory, int value, std::size_t bytes) {
  if (state().device_of(memory, bytes) < 0) {
    return refuse(cudaErrorInvalidValue);
  }
  return !state().computes() ? cudaSuccess : give_in_order([=] {
    std::memset(memory, value, bytes);
    return cudaSuccess;
  });
}

/// Copies may go to a stream of any device.
cudaError_t check_known(cudaStream_t stream) {
  return state().streams.contains(reinterpret_cast<Stream*>(stream))
             ? cudaSuccess
             : refuse(cudaErrorInvalidResourceHandle);
}

cudaError_t check_wait() {
  if (state().captures()) {
    return refuse(cudaErrorStreamCaptureUnsupported);
  }
  ++state().asked.waits;
  return cudaSuccess;
}

/// A map of what the machine's copies read, as far as a GPU could make it.
CUresult encode_tiles(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t dimensions,
                      void* matrix, const cuuint64_t* shape, const cuuint64_t* row_bytes,
                      const cuuint32_t* tile, const cuuint32_t* steps, CUtensorMapInterleave,
                      CUtensorMapSwizzle swizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  constexpr cuuint64_t kPiece = 16;
  constexpr cuuint32_t kMostRows = 256;
  constexpr cuuint32_t kColumns = 64;  // of 128 bytes
  const ptx::TensorMap made{
      reinterpret_cast<std::uint64_t>(matrix), shape[0], shape[1], row_bytes[0], tile[0], tile[1]};
  if (type != CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 || dimensions != 2 ||
      swizzle != CU_TENSOR_MAP_SWIZZLE_128B || steps[0] != 1 || steps[1] != 1 ||
      made.address % kPiece != 0 || made.row_bytes % kPiece != 0 || made.columns == 0 ||
      made.rows == 0 || tile[0] != kColumns || tile[1] == 0 || tile[1] > kMostRows) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::memcpy(map, &made, sizeof(made));
  return CUDA_SUCCESS;
}

}  // namespace

State& state() {
  static State only;
  return only;
}

int State::current() const { return current_device; }

int State::device_of(const void* address, std::size_t bytes) const {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  auto after = memory.upper_bound(at);
  if (after == memory.begin()) {
    return -1;
  }
  const auto& [begin, allocation] = *--after;
  return at + bytes <= begin + allocation.bytes ? allocation.device : -1;
}

Stream* State::capturing() const {
  for (Stream* stream : streams) {
    if (stream->captures) {
      return stream;
    }
  }
  return nullptr;
}

cudaError_t give_in_order(Work work) {
  return give([work = std::move(work)] {
    ptx::unfinished_writes().clear();
    return work();
  });
}

cudaError_t give(Work work) {
  Stream* const capturing = state().capturing();
  if (capturing == nullptr) {
    return work();
  }
  capturing->captured.push_back(std::move(work));
  return cudaSuccess;
}

cudaError_t refuse(cudaError_t error) {
  state().last_error = error;
  return error;
}

cudaError_t check_stream(cudaStream_t stream) {
  auto* const own = reinterpret_cast<Stream*>(stream);
  return state().streams.contains(own) && own->device == current_device
             ? cudaSuccess
             : refuse(cudaErrorInvalidResourceHandle);
}

Gpu computing_gpu() {
  constexpr int kMultiprocessors = 12;
  constexpr int kHopper = 90;
  Gpu gpu = ptx::newest_architecture() >= kHopper ? kH200 : kA100;
  gpu.name = ptx::newest_architecture() > 0 ? gpu.name + " in PTX" : "";
  gpu.multiprocessors = kMultiprocessors;
  gpu.memory_bytes = std::size_t{8} << 30;
  gpu.computes = true;
  return gpu;
}

void set_gpus(std::vector<Gpu> gpus) {
  state() = {};
  gpus.resize(kGpus, Gpu(gpus.back()));
  state().gpus = std::move(gpus);
  current_device = 0;
}

void fail_to_start(int error) { state().start_error = static_cast<cudaError_t>(error); }

Asked asked() { return state().asked; }

const std::vector<std::string>& launched() { return state().launched; }

}  // namespace carope::fake

using namespace carope::fake;

extern "C" {

// Errors and devices.

cudaError_t cudaGetLastError() { return std::exchange(state().last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return state().last_error; }
const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaErrorInvalidResourceHandle:
      return "invalid resource handle";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    case cudaErrorSystemNotReady:
      return "system not yet initialized";
    case cudaErrorLaunchFailure:
      return state().fault.c_str();
    default:
      return "invalid argument, or another error of a fake GPU";
  }
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = static_cast<int>(state().gpus.size());
  return state().start_error;
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= static_cast<int>(state().gpus.size())) {
    return refuse(cudaErrorInvalidDevice);
  }
  current_device = device;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  const Gpu& gpu = state().gpus.at(static_cast<std::size_t>(device));
  *properties = {};
  gpu.name.copy(properties->name, sizeof(properties->name) - 1);
  properties->major = gpu.compute_major;
  properties->minor = gpu.compute_minor;
  properties->multiProcessorCount = gpu.multiprocessors;
  properties->totalGlobalMem = gpu.memory_bytes;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  const Gpu& gpu = state().gpus.at(static_cast<std::size_t>(device));
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = gpu.multiprocessors;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = gpu.shared_bytes;
      return cudaSuccess;
    case cudaDevAttrCooperativeLaunch:
      *value = 1;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      *value = gpu.compute_major;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = gpu.compute_minor;
      return cudaSuccess;
    case cudaDevAttrMaxGridDimX:
      *value = kMostWide;
      return cudaSuccess;
    default:
      return refuse(cudaErrorNotSupported);
  }
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) { return cudaRuntimeGetVersion(version); }
cudaError_t cudaGetDriverEntryPointByVersion(const char*, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  *function = reinterpret_cast<void*>(&encode_tiles);
  *found = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

// Memory.

cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  ++state().asked.allocations;
  if (state().captures()) {
    return refuse(cudaErrorStreamCaptureUnsupported);
  }
  if (bytes > free_bytes(current_device)) {
    return refuse(cudaErrorMemoryAllocation);
  }
  *memory = reserve(bytes, state().computes());
  state().memory[reinterpret_cast<std::uintptr_t>(*memory)] = {bytes, current_device};
  return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  ++state().asked.allocations;
  const auto at = state().memory.find(reinterpret_cast<std::uintptr_t>(memory));
  if (memory == nullptr || at == state().memory.end()) {
    return memory == nullptr ? cudaSuccess : refuse(cudaErrorInvalidValue);
  }
  munmap(memory, at->second.bytes);
  carope::ptx::allocations().remove(reinterpret_cast<std::uintptr_t>(memory));
  state().memory.erase(at);
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** memory, std::size_t bytes) {
  ++state().asked.allocations;
  constexpr int kUnwritten = 0xFF;
  *memory = std::memset(std::malloc(bytes), state().computes() ? kUnwritten : 0, bytes);
  carope::ptx::allocations().add(reinterpret_cast<std::uintptr_t>(*memory), bytes);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* memory) {
  carope::ptx::allocations().remove(reinterpret_cast<std::uintptr_t>(memory));
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *free = free_bytes(current_device);
  *total = state().current_gpu().memory_bytes;
  return cudaSuccess;
}
cudaError_t cudaMemset(void* memory, int value, std::size_t bytes) {
  const cudaError_t error = check_wait();
  return error == cudaSuccess ? set_memory(memory, value, bytes) : error;
}
cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t stream) {
  const cudaError_t error = check_known(stream);
  return error == cudaSuccess ? set_memory(memory, value, bytes) : error;
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  const cudaError_t error = check_wait();
  return error == cudaSuccess ? copy_memory(to, from, bytes, kind) : error;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  const cudaError_t error = check_known(stream);
  return error == cudaSuccess ? copy_memory(to, from, bytes, kind) : error;
}

// Streams, events and graphs.

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  auto* const made = new Stream{current_device};
  state().streams.insert(made);
  *stream = reinterpret_cast<cudaStream_t>(made);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* lowest, int* highest) {
  *lowest = 0;
  *highest = -1;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return cudaStreamCreateWithFlags(stream, flags);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  auto* const own = reinterpret_cast<Stream*>(stream);
  state().streams.erase(own);
  delete own;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) { return check_wait(); }
cudaError_t cudaDeviceSynchronize() { return check_wait(); }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = reinterpret_cast<cudaEvent_t>(new int{current_device});
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return cudaEventCreate(event);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete reinterpret_cast<int*>(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  auto* const own = reinterpret_cast<Stream*>(stream);
  return state().streams.contains(own) && *reinterpret_cast<int*>(event) == own->device
             ? cudaSuccess
             : refuse(cudaErrorInvalidResourceHandle);
}
cudaError_t cudaEventSynchronize(cudaEvent_t) { return check_wait(); }
/// On a GPU that computes everything takes too little time to be measured thoroughly.
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t, cudaEvent_t) {
  *ms = state().computes() ? 0.001F : 1.0F;
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  reinterpret_cast<Stream*>(stream)->captures = true;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  auto* const own = reinterpret_cast<Stream*>(stream);
  own->captures = false;
  *graph = reinterpret_cast<cudaGraph_t>(new std::vector<Work>(std::exchange(own->captured, {})));
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status = reinterpret_cast<Stream*>(stream)->captures ? cudaStreamCaptureStatusActive
                                                        : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long) {
  *executable = reinterpret_cast<cudaGraphExec_t>(
      new std::vector<Work>(*reinterpret_cast<std::vector<Work>*>(graph)));
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete reinterpret_cast<std::vector<Work>*>(graph);
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete reinterpret_cast<std::vector<Work>*>(executable);
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  ++state().asked.launches;
  cudaError_t error = check_stream(stream);
  for (const Work& work : *reinterpret_cast<std::vector<Work>*>(executable)) {
    error = error == cudaSuccess ? work() : error;
  }
  return error;
}

}  // extern "C"
