#include "core/cuda.h"
#include "core/error.h"

namespace carope::cuda {
namespace {

[[noreturn]] void refuse() {
  throw DeviceError(
      "built without CUDA: install the CUDA toolkit (nvcc), configure again with the preset 'cuda' "
      "and "
      "rebuild, or use the CPU");
}

}  // namespace

bool compiled() { return false; }
std::vector<DeviceInfo> devices() { return {}; }
std::string trouble() { return {}; }
std::shared_ptr<void> make_stream(int) { refuse(); }
void* allocate(int, std::size_t) { refuse(); }
void release(int, void*) noexcept {}
void clear_on_stream(void*, void*, std::size_t) { refuse(); }
void upload_on_stream(void*, void*, const void*, std::size_t) { refuse(); }
void download_on_stream(void*, void*, const void*, std::size_t) { refuse(); }
void copy_on_stream(void*, void*, const void*, std::size_t) { refuse(); }
void wait_for_stream(void*) { refuse(); }
std::shared_ptr<void> allocate_pinned(std::size_t) { refuse(); }
std::shared_ptr<void> record_graph(void*, const std::function<void()>&) { refuse(); }
void launch_graph(void*, void*) { refuse(); }
void clear(int, void*, std::size_t) { refuse(); }
void copy_to_device(int, void*, const void*, std::size_t) { refuse(); }
void copy_to_host(int, void*, const void*, std::size_t) { refuse(); }

}  // namespace carope::cuda
