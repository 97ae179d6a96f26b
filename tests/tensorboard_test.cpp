// Event files, byte for byte against ones put together by hand and by TensorFlow's published
// format.
#include "train/tensorboard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "core/file.h"
#include "support/folder.h"
#include "train/metrics.h"

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

/// The records of the only file in a folder, without field 1, the time, which each begins with.
std::vector<std::string> timeless_records_in(const std::filesystem::path& folder) {
  const auto file = *std::filesystem::directory_iterator(folder);
  EXPECT_TRUE(file.path().filename().string().starts_with("events.out.tfevents."));
  std::vector<std::string> records = records_of(file.path());
  for (std::string& record : records) {
    EXPECT_EQ(record[0], '\x09');
    record.erase(0, 9);
  }
  return records;
}

/// A number's record at a step below 128, whose parts' lengths are one byte each.
std::string scalar(const std::string& tag, char step, float value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  const auto field = [](char key, const std::string& content) {
    return std::string{key, static_cast<char>(content.size())} + content;
  };
  return std::string{'\x10', step} +
         field('\x2a', field('\x0a', field('\x0a', tag) + '\x15' + bytes));
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
  const auto records = timeless_records_in(folder.path());
  ASSERT_EQ(records.size(), 3U);
  EXPECT_EQ(records[0], std::string("\x10\0\x1a\x0d", 4) + "brain.Event:2");
  EXPECT_EQ(records[1], "\x10\x07\x3a\x02\x08\x01");
  // step 300; summary { value { tag: "loss", simple_value: 2.5 } }
  EXPECT_EQ(records[2],
            std::string("\x10\xac\x02\x2a\x0d\x0a\x0b\x0a\x04loss\x15\x00\x00\x20\x40", 18));
}

TEST(TensorBoard, ShowsTheNumbersOfARunThatGoesOn) {
  const TemporaryFolder folder;
  {
    MetricsLog log(folder.path(), 41);
    log.add(StepMetrics{.step = 42,
                        .tokens = 4200,
                        .loss = 2.5,
                        .norm = 0.75,
                        .learning_rate = 0.125,
                        .seconds = 3.0,
                        .tokens_per_second = 1400.0});
    log.add(ValidationMetrics{.step = 42, .tokens = 4200, .loss = 2.25});
  }
  // The first record behind the version says from which step on the file replaces others.
  EXPECT_THAT(timeless_records_in(folder / "tensorboard"),
              testing::ElementsAre(testing::_, "\x10\x2a\x3a\x02\x08\x01",
                                   scalar("train/loss", 42, 2.5F), scalar("train/norm", 42, 0.75F),
                                   scalar("train/learning_rate", 42, 0.125F),
                                   scalar("train/tokens_per_second", 42, 1400.0F),
                                   scalar("validation/loss", 42, 2.25F)));
}

}  // namespace
}  // namespace carope::test
