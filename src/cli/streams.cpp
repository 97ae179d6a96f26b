#include "cli/streams.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "core/error.h"
#include "core/file.h"

namespace carope {
namespace {

/// Throws with the reason. A stream that failed some time before does not know it any more: one
/// more line, of an output that is not complete anyway, finds out.
[[noreturn]] void fail_to_write() {
  std::clearerr(stdout);
  const bool fails = std::fputc('\n', stdout) == EOF || std::fflush(stdout) != 0;
  const std::string reason = fails ? std::strerror(errno) : "it was full for a while";
  throw FileError(fmt::format(
      "standard output could not be written: {}; what was to be seen is not complete", reason));
}

}  // namespace

std::string read_input(const std::string& file) {
  if (!file.empty()) {
    return read_file(file);
  }
  std::string content;
  std::array<char, 1 << 16> buffer{};
  std::size_t count = 0;
  while ((count = std::fread(buffer.data(), 1, buffer.size(), stdin)) > 0) {
    content.append(buffer.data(), count);
  }
  check<FileError>(
      std::ferror(stdin) == 0,
      "standard input could not be read: {}; lead a file or a pipe to it, or name a file",
      std::strerror(errno));
  return content;
}

void open_closed_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(stream, F_GETFD) < 0) {  // so that the lowest number that is free is this one
      open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY);
    }
  }
}

void write_output(std::string_view bytes) {
  const bool written = std::fwrite(bytes.data(), 1, bytes.size(), stdout) == bytes.size() &&
                       std::fflush(stdout) == 0;
  if (!written) {
    fail_to_write();
  }
}

void finish_output() {
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    fail_to_write();
  }
}

}  // namespace carope
