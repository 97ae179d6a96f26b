#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "core/error.h"

namespace carope {

/// Something that cannot be had over the network: names the address, the file it was for and the
/// remedy.
class DownloadError : public Error {
 public:
  using Error::Error;
};

/// A file to fetch, and what is known of it beforehand.
struct Download {
  std::string url;  // http or https
  std::filesystem::path path;
  std::optional<std::int64_t> bytes{};
  std::string sha256{};  // 64 lower-case hexadecimal digits, or empty
};

struct DownloadOptions {
  int attempts = 8;  // in a row that bring nothing further; then it is given up
  std::chrono::milliseconds first_delay{500};  // before the second attempt; doubles each time
  std::chrono::milliseconds longest_delay{30'000};
  std::chrono::milliseconds connect_timeout{30'000};
  std::chrono::seconds stall_timeout{30};  // at less than this speed
  long stall_speed = 1;                    // bytes a second
};

/// Fetches a file, unless it is there already with the right length and checksum. It appears under
/// its name only when it is complete and checked; until then it has the name with ".part" appended,
/// from where the next attempt, also of another process, goes on. A ".part" of another process is
/// used only where a checksum will tell whether it belongs to the same file.
void download(const Download& file, const DownloadOptions& options = {});

}  // namespace carope
