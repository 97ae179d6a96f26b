#pragma once

#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <string>

namespace carope::test {

/// How a run of the program ended.
struct Ended {
  int status;
  std::string output;  // both streams
};

/// Runs the program with arguments as a shell takes them.
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

}  // namespace carope::test
