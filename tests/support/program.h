#pragma once

#include <string>

namespace carope::test {

struct Ended {
  int status;          // what the program returned; -1 if a signal ended it
  std::string output;  // both streams
};

/// Runs the program as a user does, from a shell.
Ended run(const std::string& arguments, const std::string& environment = "");

}  // namespace carope::test
