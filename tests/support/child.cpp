#include "support/child.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <system_error>

namespace carope::test {

std::string in_a_child(const std::function<std::string()>& body) {
  constexpr unsigned kSeconds = 60;
  std::array<int, 2> ends{};
  if (pipe(ends.data()) != 0) {
    throw std::system_error(errno, std::generic_category(), "pipe");
  }
  const pid_t child = fork();
  if (child == 0) {
    alarm(kSeconds);
    const std::string said = body();
    const bool sent = write(ends[1], said.data(), said.size()) >= 0;
    _exit(sent ? 0 : 1);
  }
  close(ends[1]);
  std::string said;
  std::array<char, 4096> buffer{};
  for (ssize_t count = 0; (count = read(ends[0], buffer.data(), buffer.size())) > 0;) {
    said.append(buffer.data(), static_cast<std::size_t>(count));
  }
  close(ends[0]);
  waitpid(child, nullptr, 0);
  return said;
}

bool mount_small(const std::string& folder, std::size_t bytes) {
  // A mount in a namespace of its own is seen by nobody else and goes with the process.
  const std::string user = fmt::format("0 {} 1", getuid());
  const std::string group = fmt::format("0 {} 1", getgid());
  if (unshare(CLONE_NEWNS) != 0) {
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) {
      return false;
    }
    // Without a name of its own in there, the user owns nothing, not even the folder.
    std::ofstream("/proc/self/setgroups") << "deny";
    std::ofstream("/proc/self/uid_map") << user;
    std::ofstream("/proc/self/gid_map") << group;
  }
  mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr);
  return mount("none", folder.c_str(), "tmpfs", 0, ("size=" + std::to_string(bytes)).c_str()) == 0;
}

bool resize_mounted(const std::string& folder, std::size_t bytes) {
  const std::string options = "size=" + std::to_string(bytes);
  return mount("none", folder.c_str(), "tmpfs", MS_REMOUNT, options.c_str()) == 0;
}

}  // namespace carope::test
