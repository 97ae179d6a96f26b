// Tensors in files, against files put together by hand.
#include "core/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "core/error.h"
#include "core/random.h"
#include "support/deep_json.h"
#include "support/errors.h"
#include "support/folder.h"

namespace carope::test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::string file_bytes(const std::string& header, const std::string& data) {
  std::string bytes(8, '\0');
  const std::uint64_t length = header.size();
  std::memcpy(bytes.data(), &length, 8);
  return bytes + header + data;
}

TEST(Safetensors, HaveTheLayoutThatOthersRead) {
  const TemporaryFolder folder;
  std::vector<float> a{1.0F, 2.0F};
  std::vector<std::int32_t> b{7};
  SafetensorsWriter writer(folder / "a", {{"x", {{1, 2}}}, {"y", {{1}, DType::kI32}}},
                           {{"made by", "us"}});
  writer.write(Tensor::of(a, {1, 2}));
  writer.write(Tensor::of(b, {1}));
  writer.commit();
  std::string header =
      R"({"__metadata__":{"made by":"us"},"x":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},)"
      R"("y":{"dtype":"I32","shape":[1],"data_offsets":[8,12]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  std::string data(12, '\0');
  std::memcpy(data.data(), a.data(), 8);
  std::memcpy(data.data() + 8, b.data(), 4);
  EXPECT_EQ(read_file(folder / "a"), file_bytes(header, data));
}

TEST(Safetensors, ComeBackBitForBit) {
  const TemporaryFolder folder;
  const Philox random(1, 1);
  std::vector<float> values(1000);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(random.normal(i));
  }
  SafetensorsWriter writer(folder / "a", {{"values", {{10, 100}}}}, {{"key", "value"}});
  writer.write(Tensor::of(values, {10, 100}));
  writer.commit();
  const SafetensorsFile file(folder / "a");
  EXPECT_THAT(file.names(), ElementsAre("values"));
  EXPECT_EQ(file.metadata().at("key"), "value");
  std::vector<float> read(1000);
  file.read("values", Tensor::of(read, {10, 100}));
  EXPECT_EQ(read, values);
  EXPECT_THAT(message_of<FileError>([&] { file.read("values", Tensor::of(read, {1000})); }),
              AllOf(HasSubstr("[10, 100]"), HasSubstr("[1000]")));
  EXPECT_THAT(message_of<FileError>([&] { file.read("value", Tensor::of(read, {1000})); }),
              HasSubstr("the nearest is 'values'"));
}

TEST(Safetensors, AreRefusedWhereTheyAreDamaged) {
  const TemporaryFolder folder;
  const auto refused = [&](const std::string& bytes) {
    const auto path = write_bytes(folder / "bad", bytes);
    const std::string message = message_of<FileError>([&] { SafetensorsFile file(path); });
    EXPECT_THAT(message, HasSubstr(path.string()));
    return message;
  };
  const std::string good =
      file_bytes(R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", "12345678");
  EXPECT_EQ(SafetensorsFile(write_bytes(folder / "good", good)).names().size(), 1U);
  for (std::size_t size = 0; size < good.size(); ++size) {
    refused(good.substr(0, size));
  }
  EXPECT_THAT(refused(good + "x"), HasSubstr("cut off or damaged"));
  EXPECT_THAT(refused(file_bytes("[]", "")), HasSubstr("no object"));
  EXPECT_THAT(refused(file_bytes("{", "")), HasSubstr("not readable"));
  const auto entry = [&](const std::string& content) {
    return refused(file_bytes("{\"x\":" + content + "}", "12345678"));
  };
  EXPECT_THAT(entry("1"), HasSubstr("not readable"));
  EXPECT_THAT(entry(R"({"dtype":"F8","shape":[8],"data_offsets":[0,8]})"), HasSubstr("dtype F8"));
  EXPECT_THAT(entry(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})"), HasSubstr("'x'"));
  EXPECT_THAT(entry(R"({"dtype":"F32","shape":[2],"data_offsets":[4,12]})"), HasSubstr("'x'"));
  for (const char* number : {"-2", "2.5", "1e30", "18446744073709551615"}) {
    EXPECT_THAT(
        entry(fmt::format(R"({{"dtype":"F32","shape":[{}],"data_offsets":[0,8]}})", number)),
        AllOf(HasSubstr("'x'"), HasSubstr("whole numbers from 0 on")));
    EXPECT_THAT(
        entry(fmt::format(R"({{"dtype":"F32","shape":[2],"data_offsets":[0,{}]}})", number)),
        AllOf(HasSubstr("'x'"), HasSubstr("whole numbers from 0 on")));
  }
  EXPECT_THAT(entry(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8,8]})"),
              HasSubstr("3 data_offsets"));
  EXPECT_THAT(entry(R"({"dtype":"F32","shape":[1,1,1,1,2],"data_offsets":[0,8]})"),
              HasSubstr("5 dimensions"));
  EXPECT_THAT(entry(R"({"dtype":"F32","shape":[4611686018427387904,8],"data_offsets":[0,8]})"),
              HasSubstr("not possible"));
  EXPECT_THAT(
      entry(fmt::format(R"({{"dtype":"F32","shape":{},"data_offsets":[0,8]}})", deep_json())),
      HasSubstr("more than 64 deep"));
}

TEST(Safetensors, AreRefusedWhereTensorsShareBytes) {
  const TemporaryFolder folder;
  const auto opened = [&](const std::string& x, const std::string& y, const std::string& empty) {
    const auto tensor = [](const char* name, int values, const std::string& place) {
      return fmt::format(R"("{}":{{"dtype":"F32","shape":[{}],"data_offsets":[{}]}})", name, values,
                         place);
    };
    const auto path =
        write_bytes(folder / "a", file_bytes("{" + tensor("x", 2, x) + "," + tensor("y", 2, y) +
                                                 "," + tensor("none", 0, empty) + "}",
                                             "12345678abcdefgh"));
    return message_of<FileError>([&] { SafetensorsFile file(path); });
  };
  EXPECT_THAT(opened("0,8", "0,8", "16,16"),
              AllOf(HasSubstr((folder / "a").string()), HasSubstr("'x'"), HasSubstr("'y'"),
                    HasSubstr("share bytes")));
  EXPECT_THAT(opened("4,12", "0,8", "0,0"), HasSubstr("'y' and 'x' share bytes"));
  // In any order, and with a tensor of nothing anywhere between the others.
  for (const char* place : {"0,0", "8,8", "16,16"}) {
    EXPECT_EQ(opened("0,8", "8,16", place), "(nothing thrown)");
    EXPECT_EQ(opened("8,16", "0,8", place), "(nothing thrown)");
  }
}

}  // namespace
}  // namespace carope::test
