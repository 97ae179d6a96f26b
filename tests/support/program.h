#pragma once

#include <sys/types.h>

#include <string>

namespace carope::test {

struct Ended {
  int status;          // what the program returned; -1 if a signal ended it
  std::string output;  // both streams
};

// The program sees a GPU only where --device cuda asks for one: what other tests expect is the
// CPU's.

/// Runs the program as a user does, from a shell.
Ended run(const std::string& arguments, const std::string& environment = "");

/// Starts the program in a process of its own, without a word on the terminal, for a test that
/// stops it.
pid_t start(const std::string& arguments);

}  // namespace carope::test
