#pragma once

#include <cstddef>

#include "core/device.h"

namespace carope {

/// One block of device memory, aligned for vector loads, given back when it goes out of scope.
class Memory {
 public:
  Memory() = default;
  Memory(Device device, std::size_t bytes);
  ~Memory();
  Memory(Memory&& other) noexcept;
  Memory& operator=(Memory&& other) noexcept;

  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  Device device() const { return device_; }

  static constexpr std::size_t kAlignment = 256;

 private:
  Device device_;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// Fills with zero bytes.
void clear(void* data, std::size_t bytes, Device device);
/// Copies from this process's memory to a device's.
void copy_from_host(void* to, const void* from, std::size_t bytes, Device device);
/// Copies from a device's memory to this process's.
void copy_to_host(void* to, const void* from, std::size_t bytes, Device device);

}  // namespace carope
