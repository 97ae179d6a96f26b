// Runs the tests of a GPU on one that is not there.
#include <gtest/gtest.h>
#include <malloc.h>

#include <climits>
#include <cstdio>
#include <cstdlib>

#include "fake_gpus.h"
#include "support/folder.h"

int main(int count, char** arguments) {
  const carope::fake::Gpu gpu = carope::fake::computing_gpu();
  if (gpu.name.empty()) {
    std::puts("no GPU is present, and no PTX in this program: compile it for 90a or 80-virtual");
    return 0;
  }
  mallopt(M_TRIM_THRESHOLD, INT_MAX);  // every launch takes as much memory again
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  carope::fake::set_gpus({gpu});
  const carope::test::TemporaryFolder folder;  // for what is measured
  setenv("XDG_CACHE_HOME", folder.path().c_str(), 1);
  testing::InitGoogleTest(&count, arguments);
  return RUN_ALL_TESTS();
}
