#include "support/png.h"

#include <zlib.h>

#include <cstdlib>

#include "core/error.h"

namespace carope::test {
namespace {

std::uint32_t number_at(const std::string& bytes, std::size_t place) {
  std::uint32_t number = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    number = number << 8 | static_cast<unsigned char>(bytes.at(place + i));
  }
  return number;
}

/// PNG's predictor: that of the neighbours which is nearest to left + above - corner.
int paeth(int left, int above, int corner) {
  const int guess = left + above - corner;
  const int to_left = std::abs(guess - left);
  const int to_above = std::abs(guess - above);
  const int to_corner = std::abs(guess - corner);
  return to_left <= to_above && to_left <= to_corner ? left
         : to_above <= to_corner                     ? above
                                                     : corner;
}

/// Turns differences back into bytes, in place: each row begins with the number of its filter.
void unfilter(std::vector<unsigned char>& rows, std::size_t row_size, std::size_t channels) {
  for (std::size_t begin = 0; begin < rows.size(); begin += row_size) {
    for (std::size_t i = 1; i < row_size; ++i) {
      const bool has_left = i > channels;
      const bool has_above = begin > 0;
      const int left = has_left ? rows[begin + i - channels] : 0;
      const int above = has_above ? rows[begin + i - row_size] : 0;
      const int corner = has_left && has_above ? rows[begin + i - row_size - channels] : 0;
      const int filter = rows[begin];
      const int predicted = filter == 1   ? left
                            : filter == 2 ? above
                            : filter == 3 ? (left + above) / 2
                            : filter == 4 ? paeth(left, above, corner)
                                          : 0;
      rows[begin + i] = static_cast<unsigned char>(rows[begin + i] + predicted);
    }
  }
}

}  // namespace

Image read_png(const std::string& bytes) {
  constexpr std::size_t kHeader = 16;  // where the first chunk's content begins
  check<Error>(bytes.substr(0, 8) == "\x89PNG\r\n\x1a\n" && bytes.size() > kHeader + 17,
               "these {} bytes are no PNG", bytes.size());
  Image image{
      .width = number_at(bytes, kHeader), .height = number_at(bytes, kHeader + 4), .pixels = {}};
  const int kind = bytes[kHeader + 9];
  check<Error>(bytes[kHeader + 8] == 8 && (kind == 2 || kind == 6) && bytes[kHeader + 12] == 0,
               "the PNG is not plain RGB or RGBA");
  const std::size_t channels = kind == 2 ? 3 : 4;
  std::string packed;
  for (std::size_t place = 8; place + 12 <= bytes.size();) {
    const std::size_t size = number_at(bytes, place);
    if (bytes.substr(place + 4, 4) == "IDAT") {
      packed += bytes.substr(place + 8, size);
    }
    place += size + 12;
  }
  const std::size_t row_size = 1 + channels * image.width;
  std::vector<unsigned char> rows(row_size * image.height);
  uLongf size = rows.size();
  const int status =
      uncompress(rows.data(), &size, reinterpret_cast<const Bytef*>(packed.data()), packed.size());
  check<Error>(status == Z_OK && size == rows.size(), "the PNG's pixels are damaged");
  unfilter(rows, row_size, channels);
  for (std::size_t y = 0; y < image.height; ++y) {
    for (std::size_t x = 0; x < image.width; ++x) {
      const unsigned char* at = &rows[y * row_size + 1 + x * channels];
      image.pixels.push_back(static_cast<std::uint32_t>(at[0] << 16 | at[1] << 8 | at[2]));
    }
  }
  return image;
}

}  // namespace carope::test
