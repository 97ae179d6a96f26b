#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "core/random.h"

namespace carope::test {

/// A test with a folder of its own, which goes with it.
class ScratchTest : public testing::Test {
 protected:
  ScratchTest() {
    setenv("NO_PROXY", "127.0.0.1", 1);  // a user's proxy does not know this machine's servers
  }
  ~ScratchTest() override {
    std::error_code error;
    std::filesystem::remove_all(folder_, error);
  }

  static std::filesystem::path make() {
    std::string name = (std::filesystem::temp_directory_path() / "carope-test-XXXXXX").string();
    return mkdtemp(name.data()) == nullptr ? std::filesystem::path{} : std::filesystem::path(name);
  }

  const std::filesystem::path folder_ = make();
};

/// Gives this process a file system of 64 kB at `folder` that no other process sees; false where
/// that is not allowed.
inline bool mount_small_disk(const std::filesystem::path& folder) {
  const std::string user = fmt::format("0 {} 1", getuid());
  const std::string group = fmt::format("0 {} 1", getgid());
  if (unshare(CLONE_NEWNS) != 0) {
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) {
      return false;
    }
    std::ofstream("/proc/self/setgroups") << "deny";
    std::ofstream("/proc/self/uid_map") << user;
    std::ofstream("/proc/self/gid_map") << group;
  }
  return mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         mount("none", folder.c_str(), "tmpfs", 0, "size=64k") == 0;
}

/// Bytes of every value, the same for the same seed.
inline std::string pseudo_random_text(std::size_t size, std::uint64_t seed) {
  const Philox random(seed, 7);
  std::string text(size, '\0');
  for (std::size_t i = 0; i < size; ++i) {
    text[i] = static_cast<char>(random.below(256, i));
  }
  return text;
}

/// What an exception of type E says; "(nothing thrown)" where there was none.
template <class E, class Body>
std::string message_of(const Body& body) {
  try {
    body();
  } catch (const E& error) {
    return error.what();
  }
  return "(nothing thrown)";
}

}  // namespace carope::test
