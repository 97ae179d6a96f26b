#pragma once

#include <filesystem>
#include <string>

namespace carope::test {

/// A new folder that goes, with all it holds, when the test ends.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

/// Writes a file without the code under test; returns its path.
std::filesystem::path write_bytes(const std::filesystem::path& path, const std::string& bytes);

}  // namespace carope::test
