#include "cli/interrupt.h"

#include <csignal>

namespace carope {
namespace {

std::atomic<bool> interrupted = false;

}  // namespace

PoliteStop::PoliteStop() {
  interrupted = false;
  std::signal(SIGINT, [](int) {
    interrupted = true;
    std::signal(SIGINT, SIG_DFL);
  });
}

PoliteStop::~PoliteStop() { std::signal(SIGINT, SIG_DFL); }

const std::atomic<bool>& PoliteStop::asked() const { return interrupted; }

}  // namespace carope
