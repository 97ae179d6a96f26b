// Event files, byte for byte against ones put together by hand and by TensorFlow's published
// format.
#include "train/tensorboard.h"

#include <gtest/gtest.h>

#include <cstring>

#include "core/file.h"
#include "support/folder.h"

namespace carope::test {
namespace {

/// CRC-32C one bit at a time.
std::uint32_t slow_crc32c(const std::string& bytes) {
  std::uint32_t crc = 0xffffffff;
  for (const char byte : bytes) {
    crc ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc & 1) != 0 ? (crc >> 1) ^ 0x82f63b78 : crc >> 1;
    }
  }
  return ~crc;
}

std::uint32_t masked(const std::string& bytes) {
  const std::uint32_t crc = slow_crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8;
}

template <class T>
T take(std::string& bytes) {
  T value{};
  std::memcpy(&value, bytes.data(), sizeof value);
  bytes.erase(0, sizeof value);
  return value;
}

/// The records of a file, their checksums checked.
std::vector<std::string> records_of(const std::filesystem::path& path) {
  std::string bytes = read_file(path);
  std::vector<std::string> records;
  while (!bytes.empty()) {
    const std::string length_bytes = bytes.substr(0, 8);
    const auto length = take<std::uint64_t>(bytes);
    EXPECT_EQ(take<std::uint32_t>(bytes), masked(length_bytes));
    records.push_back(bytes.substr(0, length));
    bytes.erase(0, length);
    EXPECT_EQ(take<std::uint32_t>(bytes), masked(records.back()));
  }
  return records;
}

TEST(TensorBoard, ReferenceChecksumIsCastagnolis) {
  EXPECT_EQ(slow_crc32c("123456789"), 0xe3069283);
}

TEST(TensorBoard, WritesScalars) {
  const TemporaryFolder folder;
  {
    TensorBoardLog log(folder.path(), 7);
    log.add("loss", 300, 2.5);
  }
  const auto file = *std::filesystem::directory_iterator(folder.path());
  EXPECT_TRUE(file.path().filename().string().starts_with("events.out.tfevents."));
  const auto records = records_of(file.path());
  ASSERT_EQ(records.size(), 3U);
  // Each begins with field 1, the time, in eight bytes.
  const auto rest = [&](std::size_t i) {
    EXPECT_EQ(records[i][0], '\x09');
    return records[i].substr(9);
  };
  EXPECT_EQ(rest(0), std::string("\x10\0\x1a\x0d", 4) + "brain.Event:2");
  EXPECT_EQ(rest(1), "\x10\x07\x3a\x02\x08\x01");
  // step 300; summary { value { tag: "loss", simple_value: 2.5 } }
  EXPECT_EQ(rest(2),
            std::string("\x10\xac\x02\x2a\x0d\x0a\x0b\x0a\x04loss\x15\x00\x00\x20\x40", 18));
}

}  // namespace
}  // namespace carope::test
