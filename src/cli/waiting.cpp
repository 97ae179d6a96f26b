#include "cli/waiting.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>

namespace carope {

void wait_without_spinning(char** argv) {
  constexpr const char* kSpins = "3000";  // about ten microseconds
  if (std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr) {
    return;
  }
  setenv("GOMP_SPINCOUNT", kSpins, 0);
  std::error_code error;  // the program by its own path, so that lists of processes name it
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  execv(program.c_str(), argv);  // returns only where it is not possible: then threads spin
}

}  // namespace carope
