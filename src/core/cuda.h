#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

// The CUDA part of the library as the rest of it sees it. A build without CUDA links no_cuda.cpp,
// in which there are no devices and everything else throws "built without CUDA".
namespace carope::cuda {

struct DeviceInfo {
  std::string name;
  int compute_major = 0;
  int compute_minor = 0;
  int multiprocessors = 0;
  std::size_t memory_bytes = 0;
};

/// Whether there are kernels for such a GPU, if the program was compiled for it.
inline bool is_served(const DeviceInfo& device) { return device.compute_major >= 8; }

/// Whether this build has the CUDA part.
bool compiled();
/// The devices this process can use, in CUDA's order; empty without a GPU or a driver.
std::vector<DeviceInfo> devices();
/// Why CUDA does not start although it has a driver, such as one that is too old; empty if it does,
/// or there is none.
std::string trouble();

/// A cudaStream_t, destroyed with its last owner. The calling thread's kernels go to its device
/// from then on.
std::shared_ptr<void> make_stream(int device);

void* allocate(int device, std::size_t bytes);
void release(int device, void* data) noexcept;
void clear_on_stream(void* stream, void* data, std::size_t bytes);
void upload_on_stream(void* stream, void* to, const void* from, std::size_t bytes);
void download_on_stream(void* stream, void* to, const void* from, std::size_t bytes);
void copy_on_stream(void* stream, void* to, const void* from, std::size_t bytes);
void wait_for_stream(void* stream);

/// Memory of this process that a device copies from and to by itself, while the process goes on.
std::shared_ptr<void> allocate_pinned(std::size_t bytes);

/// A cudaGraphExec_t of what `issue` gives to the stream, which does not run now.
std::shared_ptr<void> record_graph(void* stream, const std::function<void()>& issue);
void launch_graph(void* stream, void* graph);

// These wait for everything issued to the device before, and until they are done.
void clear(int device, void* data, std::size_t bytes);
void copy_to_device(int device, void* to, const void* from, std::size_t bytes);
void copy_to_host(int device, void* to, const void* from, std::size_t bytes);

}  // namespace carope::cuda
