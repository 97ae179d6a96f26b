#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace carope::test {

/// An image of 8 bits a channel, as 0xRRGGBB by rows.
struct Image {
  std::uint32_t width = 0, height = 0;
  std::vector<std::uint32_t> pixels;
};

/// Decodes a PNG of RGB or RGBA without interlacing, such as browsers write. Throws an Error for
/// any other.
Image read_png(const std::string& bytes);

}  // namespace carope::test
