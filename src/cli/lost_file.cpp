#include "cli/lost_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>

#include "core/progress.h"
#include "dist/launch.h"

namespace carope {
namespace {

/// The file that is mapped into memory at an address; empty if there is none.
std::string mapped_at(std::uintptr_t address) {
  std::ifstream maps("/proc/self/maps");
  // begin-end permissions offset device inode path
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t begin = 0, end = 0;
    int path = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx %*s %*s %*s %*s %n", &begin, &end, &path) == 2 &&
        begin <= address && address < end && line.find('/') != std::string::npos) {
      return line.substr(static_cast<std::size_t>(path));
    }
  }
  return {};
}

/// The fault is where the program reads the file and nowhere in a library that holds locks, so all
/// may be called here that may be called there.
void explain(int signal, siginfo_t* info, void*) {
  const std::string file = mapped_at(reinterpret_cast<std::uintptr_t>(info->si_addr));
  if (file.empty() || file.starts_with("/dev/")) {  // or memory that processes share
    std::signal(signal, SIG_DFL);                   // and the fault repeats itself
    return;
  }
  tell(
      fmt::format("\ncarope: {}{} became shorter while it was read; restore it, and begin again. A "
                  "training goes on from its last checkpoint with --resume\n",
                  speaker(), file));
  _exit(1);
}

}  // namespace

void explain_lost_files() {
  struct sigaction action {};
  action.sa_sigaction = explain;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGBUS, &action, nullptr);
}

}  // namespace carope
