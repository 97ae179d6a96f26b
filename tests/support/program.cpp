#include "support/program.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>

namespace carope::test {
namespace {

std::string hide_gpus(const std::string& arguments) {
  const bool wanted = arguments.find("--device cuda") != std::string::npos;
  return wanted ? "" : "export CUDA_VISIBLE_DEVICES=-1; ";
}

}  // namespace

Ended run(const std::string& arguments, const std::string& environment) {
  const std::string command =
      hide_gpus(arguments) + environment + " '" CAROPE_PROGRAM "' " + arguments + " 2>&1";
  FILE* pipe = popen(command.c_str(), "r");
  std::string output;
  std::array<char, 4096> buffer{};
  for (std::size_t count = 0; (count = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) {
    output.append(buffer.data(), count);
  }
  const int status = pclose(pipe);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, output};
}

pid_t start(const std::string& arguments) {
  const pid_t child = fork();
  if (child == 0) {
    const int null = open("/dev/null", O_WRONLY);
    dup2(null, STDOUT_FILENO);
    dup2(null, STDERR_FILENO);
    const std::string command = hide_gpus(arguments) + "exec '" CAROPE_PROGRAM "' " + arguments;
    execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    _exit(127);
  }
  return child;
}

}  // namespace carope::test
