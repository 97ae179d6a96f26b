#include "cli/interrupt.h"

#include <csignal>

namespace carope {
namespace {

std::atomic<bool> interrupted = false;  // a signal handler can reach nothing else

}  // namespace

const std::atomic<bool>& stop_politely() {
  std::signal(SIGINT, [](int) {
    interrupted = true;
    std::signal(SIGINT, SIG_DFL);
  });
  return interrupted;
}

}  // namespace carope
