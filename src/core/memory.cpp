#include "core/memory.h"

#include <cstring>
#include <new>
#include <utility>

#include "core/cuda.h"
#include "core/error.h"

namespace carope {

Memory::Memory(Device device, std::size_t bytes) : device_(device), bytes_(bytes) {
  if (bytes == 0) {
    return;
  }
  if (device.kind == DeviceKind::kCuda) {
    data_ = cuda::allocate(device.index, bytes);
    return;
  }
  data_ = ::operator new (bytes, std::align_val_t{kAlignment}, std::nothrow);
  check<OutOfMemory>(data_ != nullptr,
                     "cannot allocate {:.1f} MiB of memory; use a smaller batch, length or model",
                     static_cast<double>(bytes) / (1024.0 * 1024.0));
}

Memory::~Memory() {
  if (data_ == nullptr) {
    return;
  }
  if (device_.kind == DeviceKind::kCuda) {
    cuda::release(device_.index, data_);
  } else {
    ::operator delete (data_, std::align_val_t{kAlignment});
  }
}

Memory::Memory(Memory&& other) noexcept { *this = std::move(other); }

Memory& Memory::operator=(Memory&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

void clear(void* data, std::size_t bytes, Device device) {
  if (device.kind == DeviceKind::kCuda) {
    cuda::clear(device.index, data, bytes);
  } else {
    std::memset(data, 0, bytes);
  }
}

void copy_from_host(void* to, const void* from, std::size_t bytes, Device device) {
  if (device.kind == DeviceKind::kCuda) {
    cuda::copy_to_device(device.index, to, from, bytes);
  } else {
    std::memcpy(to, from, bytes);
  }
}

void copy_to_host(void* to, const void* from, std::size_t bytes, Device device) {
  if (device.kind == DeviceKind::kCuda) {
    cuda::copy_to_host(device.index, to, from, bytes);
  } else {
    std::memcpy(to, from, bytes);
  }
}

}  // namespace carope
