#pragma once

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <vector>

namespace carope::test {

/// A folder of its own that goes when the test ends.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "carope_XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) {
      throw std::system_error(errno, std::generic_category(), name);
    }
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

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

inline std::filesystem::path write_bytes(const std::filesystem::path& path,
                                         const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

/// What the error says, or that there was none.
template <class E, class Body>
std::string error_of(const Body& body) {
  try {
    body();
  } catch (const E& error) {
    return error.what();
  }
  return "(nothing thrown)";
}

}  // namespace carope::test
