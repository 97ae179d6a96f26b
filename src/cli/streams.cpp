#include "cli/streams.h"

#include <cstdio>
#include <iostream>
#include <iterator>

#include "core/error.h"
#include "core/file.h"

namespace carope {

std::string read_input(const std::string& file) {
  if (!file.empty()) {
    return read_file(file);
  }
  return {std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
}

void write_output(std::string_view bytes) {
  const bool written = std::fwrite(bytes.data(), 1, bytes.size(), stdout) == bytes.size() &&
                       std::fflush(stdout) == 0;
  check<FileError>(written, "cannot write to standard output; is the disk full?");
}

}  // namespace carope
