#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "support/folder.h"

namespace carope::test {

/// The bytes of a shard, put together without the code under test.
inline std::string shard_bytes(const std::vector<std::uint16_t>& tokens) {
  const auto little_endian = [](std::uint64_t value, int bytes) {
    std::string text;
    for (int i = 0; i < bytes; ++i) {
      text += static_cast<char>(value >> (8 * i) & 0xff);
    }
    return text;
  };
  std::string bytes = little_endian(20240520, 4) + little_endian(1, 4);
  bytes += little_endian(tokens.size(), 4);
  bytes.resize(1024, '\0');
  for (const std::uint16_t token : tokens) {
    bytes += little_endian(token, 2);
  }
  return bytes;
}

}  // namespace carope::test
