#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <string>

#include "core/random.h"
#include "support/folder.h"

namespace carope::test {

/// A test with a folder of its own that talks to a server on this machine.
class ScratchTest : public testing::Test {
 protected:
  ScratchTest() {
    setenv("NO_PROXY", "127.0.0.1", 1);  // a user's proxy does not know this machine's servers
  }

 private:
  const TemporaryFolder temporary_;

 protected:
  const std::filesystem::path& folder_ = temporary_.path();
};

/// Bytes of every value, the same for the same seed.
inline std::string pseudo_random_text(std::size_t size, std::uint64_t seed) {
  const Philox random(seed, 7);
  std::string text(size, '\0');
  for (std::size_t i = 0; i < size; ++i) {
    text[i] = static_cast<char>(random.below(256, i));
  }
  return text;
}

}  // namespace carope::test
