#include "cli/waiting.h"

#include <unistd.h>

#include <cstdlib>

namespace carope {

void wait_without_spinning(char** argv) {
  constexpr const char* kSpins = "3000";  // about ten microseconds
  if (std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr) {
    return;
  }
  setenv("GOMP_SPINCOUNT", kSpins, 0);
  execv("/proc/self/exe", argv);  // returns only where it is not possible: then threads spin
}

}  // namespace carope
