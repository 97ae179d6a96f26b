#include "train/tensorboard.h"

#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>

#include "core/error.h"
#include "core/file.h"

// An event file is a sequence of records, each a protocol buffer of type Event with checksums
// around it. Of Event only what scalars need is written: wall_time = 1, step = 2, file_version = 3,
// summary = 5, session_log = 7; of Summary: value = 1; of Value: tag = 1, simple_value = 2.
namespace carope {
namespace {

static_assert(std::endian::native == std::endian::little);

/// CRC-32C (Castagnoli).
std::uint32_t crc32c(std::string_view bytes) {
  static const auto kTable = [] {
    std::array<std::uint32_t, 256> table{};
    for (std::uint32_t i = 0; i < 256; ++i) {
      std::uint32_t crc = i;
      for (int bit = 0; bit < 8; ++bit) {
        crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0u);
      }
      table[i] = crc;
    }
    return table;
  }();
  std::uint32_t crc = ~0u;
  for (const char byte : bytes) {
    crc = crc >> 8 ^ kTable[(crc ^ static_cast<unsigned char>(byte)) & 0xff];
  }
  return ~crc;
}

template <class T>
std::string raw(T value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

/// A checksum as record files have it: turned and shifted, lest it be taken for data.
std::string masked_crc(std::string_view bytes) {
  const std::uint32_t crc = crc32c(bytes);
  return raw((crc >> 15 | crc << 17) + 0xa282ead8u);
}

std::string varint(std::uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) {
    bytes += static_cast<char>(value | 0x80);
  }
  return bytes += static_cast<char>(value);
}

enum WireType : std::uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

std::string key(int field, WireType type) {
  return varint(static_cast<std::uint64_t>(field) << 3 | type);
}
std::string field(int number, std::string_view bytes) {
  return key(number, kBytes) + varint(bytes.size()) + std::string(bytes);
}

std::string event(std::int64_t step, const std::string& what) {
  const double now =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  return key(1, kFixed64) + raw(now) + key(2, kVarint) + varint(static_cast<std::uint64_t>(step)) +
         what;
}

}  // namespace

TensorBoardLog::TensorBoardLog(const std::filesystem::path& folder, std::int64_t first_step) {
  make_folder(folder);
  const auto now = std::chrono::duration_cast<std::chrono::milliseconds>(
                       std::chrono::system_clock::now().time_since_epoch())
                       .count();
  path_ = folder / fmt::format("events.out.tfevents.{:013}.{}", now, getpid());
  file_.reset(std::fopen(path_.c_str(), "wb"));
  check<FileError>(file_ != nullptr, "cannot write {}: {}; check the permissions", path_.string(),
                   std::strerror(errno));
  write(event(0, field(3, "brain.Event:2")));
  // A session that starts anew at a step takes back what was written of later ones.
  constexpr int kStatus = 1;
  constexpr std::uint64_t kStart = 1;
  write(event(first_step, field(7, key(kStatus, kVarint) + varint(kStart))));
}

void TensorBoardLog::add(std::string_view tag, std::int64_t step, double value) {
  const std::string number = key(2, kFixed32) + raw(static_cast<float>(value));
  write(event(step, field(5, field(1, field(1, tag) + number))));
}

void TensorBoardLog::write(std::string_view event) {
  const std::string length = raw(static_cast<std::uint64_t>(event.size()));
  const std::string record = length + masked_crc(length) + std::string(event) + masked_crc(event);
  const bool written = std::fwrite(record.data(), 1, record.size(), file_.get()) == record.size() &&
                       std::fflush(file_.get()) == 0;
  check<FileError>(written,
                   "cannot write {}: {}; free some space, then run the command again (carope train "
                   "with --resume auto)",
                   path_.string(), std::strerror(errno));
}

}  // namespace carope
