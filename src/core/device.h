#pragma once

#include <cstdint>
#include <string>

namespace carope {

enum class DeviceKind : std::uint8_t { kCpu, kCuda };

/// Where a tensor lives and an operation runs.
struct Device {
  DeviceKind kind = DeviceKind::kCpu;
  int index = 0;

  friend bool operator==(const Device&, const Device&) = default;
};

inline std::string to_string(Device device) {
  return device.kind == DeviceKind::kCpu ? "cpu" : "cuda:" + std::to_string(device.index);
}

}  // namespace carope
