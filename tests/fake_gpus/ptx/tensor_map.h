#pragma once

#include <cstdint>

namespace carope::ptx {

/// What a fake driver writes to a CUtensorMap, and the machine's copies read: a matrix of elements
/// of two bytes, and its tiles.
struct TensorMap {
  std::uint64_t address;
  std::uint64_t columns, rows, row_bytes;
  std::uint32_t tile_columns, tile_rows;
};

}  // namespace carope::ptx
