#pragma once

<<<<<<< HEAD
#include <filesystem>
=======
#include <sys/wait.h>

#include <array>
#include <cstdio>
>>>>>>> fetch
#include <string>

namespace carope::test {

struct Ended {
<<<<<<< HEAD
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
=======
  int status;
  std::string output;  // both streams
};

/// Runs the program as a user does, from a shell.
inline Ended run(const std::string& arguments, const std::string& environment = "") {
  const std::string command = environment + " '" CAROPE_PROGRAM "' " + arguments + " 2>&1";
  FILE* pipe = popen(command.c_str(), "r");
  std::string output;
  std::array<char, 4096> buffer{};
  for (std::size_t count = 0; (count = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) {
    output.append(buffer.data(), count);
  }
  const int status = pclose(pipe);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, output};
}
>>>>>>> fetch

}  // namespace carope::test
