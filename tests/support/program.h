#pragma once

#include <filesystem>
#include <string>

namespace carope::test {

struct Ended {
  int status;          // what the program returned; -1 if a signal ended it
  std::string output;  // both streams
};

/// Runs the program through the shell, as a user would.
Ended run_program(const std::string& arguments, const std::string& environment = "");

/// A new folder that is removed with all it holds.
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

}  // namespace carope::test
