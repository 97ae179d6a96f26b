// Token shards: their bytes, and every way in which a file can fail to be one.
#include "data/shards/shard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>

#include "core/error.h"
#include "core/random.h"
#include "support/child.h"
#include "support/errors.h"
#include "support/shard_files.h"

namespace carope::test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

TEST(ShardWriter, WritesWhatLlmcReadsByteForByte) {
  const TemporaryFolder folder;
  const std::vector<TokenId> tokens{1, 50256, 0x0102, 65535, 0};
  ShardWriter writer(folder / "a.bin");
  writer.append(tokens);
  writer.commit();
  const std::string bytes = read_file(folder / "a.bin");
  ASSERT_EQ(bytes.size(), 1024U + 10U);
  EXPECT_EQ(bytes.substr(0, 12), std::string("\x88\xd8\x34\x01"
                                             "\x01\0\0\0"
                                             "\x05\0\0\0",
                                             12));
  EXPECT_EQ(bytes.substr(12, 1012), std::string(1012, '\0'));
  EXPECT_EQ(bytes.substr(1024), std::string("\x01\0\x50\xc4\x02\x01\xff\xff\0\0", 10));
  EXPECT_EQ(bytes, shard_bytes(tokens));
}

TEST(ShardWriter, JoinsPiecesOfAnySize) {
  const TemporaryFolder folder;
  std::vector<TokenId> all;
  ShardWriter writer(folder / "a.bin");
  for (const std::size_t size : {0U, 1U, 700000U, 3U, 524288U, 0U, 17U}) {
    std::vector<TokenId> piece(size);
    for (TokenId& token : piece) {
      token = static_cast<TokenId>(Philox(1, 2).below(65536, all.size()));
      all.push_back(token);
    }
    writer.append(piece);
  }
  EXPECT_EQ(writer.size(), static_cast<std::int64_t>(all.size()));
  EXPECT_FALSE(fs::exists(folder / "a.bin")) << "seen before it is complete";
  writer.commit();
  EXPECT_TRUE(read_file(folder / "a.bin") == shard_bytes(all));
}

TEST(ShardWriter, LeavesNothingBehindWhenGivenUp) {
  const TemporaryFolder folder;
  {
    ShardWriter writer(folder / "a.bin");
    writer.append(std::vector<TokenId>(1000, 7));
  }
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(ShardWriter, RefusesToMakeWhatNoReaderTakes) {
  const TemporaryFolder folder;
  ShardWriter writer(folder / "a.bin");
  EXPECT_THAT(message_of<FileError>([&] { writer.commit(); }),
              AllOf(HasSubstr("a.bin"), HasSubstr("no tokens"), HasSubstr("append some")));
  EXPECT_FALSE(fs::exists(folder / "a.bin"));
  const TokenId token = 0;
  EXPECT_THAT(message_of<FileError>([&] {
                writer.append({&token, std::size_t{1} << 31});  // must be refused before it is read
              }),
              AllOf(HasSubstr("a.bin"), HasSubstr("2147483647"), HasSubstr("begin another shard")));
  EXPECT_THAT(message_of<FileError>([&] { ShardWriter(folder / "no/such/a.bin"); }),
              AllOf(HasSubstr("no/such/a.bin"), HasSubstr("check the path")));
}

TEST(Shard, ReadsAFileWrittenByHand) {
  const TemporaryFolder folder;
  const std::vector<std::uint16_t> tokens{50256, 15496, 995, 0, 65535};
  Shard shard(write_bytes(folder / "a.bin", shard_bytes(tokens)));
  const Shard moved = std::move(shard);
  EXPECT_THAT(moved.tokens(), testing::ElementsAreArray(tokens));
  EXPECT_EQ(moved.path(), folder / "a.bin");
  moved.prefetch(0, 5);
  moved.prefetch(2, 1000000);  // advice only: past the end is no error
}

TEST(Shard, IgnoresWhatLlmcIgnoresInTheHeader) {
  const TemporaryFolder folder;
  std::string bytes = shard_bytes({1, 2, 3});
  bytes[12] = 9;
  bytes[1023] = 9;
  EXPECT_THAT(Shard(write_bytes(folder / "a.bin", bytes)).tokens(), ElementsAre(1, 2, 3));
}

/// The message for a file of these bytes. Every one names the file.
std::string refusal_of(const std::string& bytes) {
  const TemporaryFolder folder;
  const fs::path path = write_bytes(folder / "x_train_000001.bin", bytes);
  const std::string message = message_of<FileError>([&] { Shard shard(path); });
  EXPECT_THAT(message, HasSubstr(path.string()));
  return message;
}

/// A shard of three tokens with one number of its header replaced.
std::string with_header(std::size_t index, std::uint32_t value) {
  std::string bytes = shard_bytes({1, 2, 3});
  for (std::size_t i = 0; i < 4; ++i) {
    bytes[4 * index + i] = static_cast<char>(value >> (8 * i) & 0xff);
  }
  return bytes;
}

TEST(Shard, RefusesAFileOfTheWrongSize) {
  EXPECT_THAT(refusal_of(""), AllOf(HasSubstr("is empty"), HasSubstr("make or fetch it again")));
  const std::string whole = shard_bytes({1, 2, 3});
  EXPECT_THAT(refusal_of(whole.substr(0, 1)), HasSubstr("has 1 bytes"));
  EXPECT_THAT(refusal_of(whole.substr(0, 1023)),
              AllOf(HasSubstr("has 1023 bytes"), HasSubstr("1024"), HasSubstr("again")));
  EXPECT_THAT(refusal_of(whole.substr(0, 1029)),
              AllOf(HasSubstr("is truncated"), HasSubstr("3 tokens"), HasSubstr("1030 bytes"),
                    HasSubstr("the file has 1029"), HasSubstr("make or fetch it again")));
  EXPECT_THAT(refusal_of(whole.substr(0, 1024)), HasSubstr("the file has 1024"));
  EXPECT_THAT(refusal_of(whole + "x"),
              AllOf(HasSubstr("is too long"), HasSubstr("1030 bytes"), HasSubstr("has 1031")));
}

TEST(Shard, RefusesAWrongHeader) {
  EXPECT_THAT(refusal_of(with_header(0, 20240519)),
              AllOf(HasSubstr("at byte 0"), HasSubstr("magic number 20240519"),
                    HasSubstr("expected 20240520"), HasSubstr("name a file")));
  EXPECT_THAT(
      refusal_of(with_header(1, 2)),
      AllOf(HasSubstr("version 2 at byte 4"), Not(HasSubstr("Llama")), HasSubstr("make it again")));
  EXPECT_THAT(refusal_of(with_header(1, 7)),
              AllOf(HasSubstr("version 7"), HasSubstr("Llama 3, with 32 bits a token")));
  EXPECT_THAT(refusal_of(with_header(2, 0)),
              AllOf(HasSubstr("has 0 tokens"), HasSubstr("byte 8"), HasSubstr("again")));
  EXPECT_THAT(refusal_of(with_header(2, 0xffffffff)), HasSubstr("has -1 tokens"));
  EXPECT_THAT(refusal_of(with_header(2, 0x7fffffff)),
              AllOf(HasSubstr("truncated"), HasSubstr("4294968318 bytes")));
}

TEST(Shard, SaysWhatAForeignFileIs) {
  const std::string filler(2000, 'x');
  EXPECT_THAT(refusal_of("\x1f\x8b" + filler), HasSubstr("a gzip file; unpack it"));
  EXPECT_THAT(refusal_of("\x28\xb5\x2f\xfd" + filler), HasSubstr("a zstd file; unpack it"));
  EXPECT_THAT(refusal_of("PAR1" + filler), HasSubstr("a parquet file of text; make token shards"));
  EXPECT_THAT(refusal_of("version https://git-lfs.github.com/spec/v1\n"),
              HasSubstr("a Git LFS pointer; fetch"));
  EXPECT_THAT(refusal_of("<!DOCTYPE html>"), HasSubstr("a web page"));
  EXPECT_THAT(refusal_of(R"({"error": 404})"), HasSubstr("JSON"));
  EXPECT_THAT(refusal_of(with_header(0, 20240326)), HasSubstr("a model of llm.c"));
  EXPECT_THAT(refusal_of(with_header(0, 20240522)), HasSubstr("an evaluation set of llm.c"));
  EXPECT_THAT(refusal_of(with_header(0, 0x88d83401)), HasSubstr("big-endian order; swap"));
}

TEST(Shard, RefusesADirectoryAndAMissingFile) {
  const TemporaryFolder folder;
  EXPECT_THAT(
      message_of<FileError>([&] { Shard shard(folder.path()); }),
      AllOf(HasSubstr(folder.path().string()), HasSubstr("is a directory"), HasSubstr("name a")));
  EXPECT_THAT(message_of<FileError>([&] { Shard shard(folder / "no.bin"); }),
              AllOf(HasSubstr("no.bin does not exist"), HasSubstr("check the path")));
}

TEST(ShardHeader, EitherFitsTheFileOrIsRefused) {
  const std::string whole = shard_bytes({1, 2, 3});
  int accepted = 0;
  for (std::uint64_t i = 0; i < 20000; ++i) {
    const Philox random(3, i);
    std::string bytes = whole.substr(0, i % 4 == 0 ? random.below(1032, 0) : whole.size());
    for (std::uint64_t change = 0; change < i % 3 && !bytes.empty(); ++change) {
      const auto size = static_cast<std::uint32_t>(std::min<std::size_t>(bytes.size(), 1030));
      // Half of the changes hit the three numbers that matter.
      const std::uint32_t at =
          random.below(change % 2 == 0 ? std::min(size, 12U) : size, 1 + 2 * change);
      bytes[at] = static_cast<char>(random.below(256, 2 + 2 * change));
    }
    try {
      const std::int64_t tokens = parse_shard_header(std::as_bytes(std::span(bytes)), "shard.bin");
      ASSERT_EQ(1024 + 2 * tokens, static_cast<std::int64_t>(bytes.size()));
      ++accepted;
    } catch (const FileError& error) {
      ASSERT_THAT(error.what(), HasSubstr("shard.bin"));
    }
  }
  EXPECT_GT(accepted, 1000);
  EXPECT_LT(accepted, 19000);
}

TEST(ShardNames, AreThoseOfLlmc) {
  EXPECT_EQ(shard_path("data", "edu_fineweb", Split::kValidation, 0),
            "data/edu_fineweb_val_000000.bin");
  EXPECT_EQ(shard_path("data", "edu_fineweb", Split::kTrain, 1234567),
            "data/edu_fineweb_train_1234567.bin");
  EXPECT_EQ(split_of("a/edu_fineweb_train_000001.bin"), Split::kTrain);
  EXPECT_EQ(split_of("a_train_b/x_val_000000.bin"), Split::kValidation);
  EXPECT_EQ(split_of("x_val_train_000001.bin"), Split::kTrain) << "in one split, not two";
  EXPECT_EQ(split_of("x_train_val_000001.bin"), Split::kValidation);
  EXPECT_EQ(split_of("x_train_000001.bin.part"), std::nullopt);
  EXPECT_EQ(split_of("train.bin"), std::nullopt);
}

TEST(FindShards, GivesASplitInTheOrderOfNames) {
  const TemporaryFolder folder;
  for (const char* name : {"x_train_000010.bin", "x_val_000000.bin", "x_train_000002.bin",
                           "x_train_000001.bin", "x_train_000003.bin.part", "manifest.json"}) {
    write_bytes(folder / name, "x");
  }
  EXPECT_THAT(find_shards(folder.path(), Split::kTrain),
              ElementsAre(folder / "x_train_000001.bin", folder / "x_train_000002.bin",
                          folder / "x_train_000010.bin"));
  EXPECT_THAT(find_shards(folder.path(), Split::kValidation),
              ElementsAre(folder / "x_val_000000.bin"));
  EXPECT_THAT(list_shards(folder.path()), testing::SizeIs(4));
  EXPECT_THAT(find_shards(folder / "manifest.json", Split::kTrain),
              ElementsAre(folder / "manifest.json"))
      << "a file that is named is taken, whatever its name";
}

TEST(FindShards, SaysWhatIsThereInstead) {
  const TemporaryFolder folder;
  EXPECT_THAT(message_of<FileError>([&] { find_shards(folder.path(), Split::kTrain); }),
              AllOf(HasSubstr(folder.path().string()), HasSubstr("it has nothing"),
                    HasSubstr("name another folder")));
  write_bytes(folder / "x_val_000000.bin", "x");
  EXPECT_THAT(message_of<FileError>([&] { find_shards(folder.path(), Split::kTrain); }),
              AllOf(HasSubstr("*_train_*.bin"), HasSubstr("it has x_val_000000.bin")));
  fs::remove(folder / "x_val_000000.bin");
  for (int i = 0; i < 13; ++i) {
    write_bytes(folder / fmt::format("f{:02}", i), "x");
  }
  EXPECT_THAT(message_of<FileError>([&] { list_shards(folder.path()); }),
              AllOf(HasSubstr("it has f00, f01"), HasSubstr("f09, 3 more; ")));
  EXPECT_THAT(message_of<FileError>([&] { find_shards(folder / "none", Split::kTrain); }),
              AllOf(HasSubstr("none does not exist"), HasSubstr("check the path")));
  EXPECT_THAT(message_of<FileError>([&] { list_shards(folder / "f00"); }),
              AllOf(HasSubstr("f00"), HasSubstr("check the path")));
}

/// Writes a shard of 2 MB where there is less room, and says how that went.
std::string write_too_much(const fs::path& folder) {
  const std::string message = message_of<FileError>([&] {
    ShardWriter writer(folder / "a.bin");
    for (int i = 0; i < 100; ++i) {
      writer.append(std::vector<TokenId>(10000, 7));
    }
    writer.commit();
  });
  return message + (fs::is_empty(folder) ? " [folder empty]" : " [something left]");
}

TEST(ShardWriter, OnAFullDiskSaysSoAndLeavesNothing) {
  const TemporaryFolder folder;
  const std::string said = in_a_child([&]() -> std::string {
    return mount_small(folder.path(), 512 * 1024) ? write_too_much(folder.path()) : "no mount";
  });
  if (said == "no mount") {
    GTEST_SKIP() << "a small file system cannot be mounted here";
  }
  EXPECT_THAT(said, AllOf(HasSubstr("a.bin"), HasSubstr("No space left on device"),
                          HasSubstr("free some space"), HasSubstr("[folder empty]")));
}

TEST(ShardWriter, PastTheLargestFileSaysSoAndLeavesNothing) {
  const TemporaryFolder folder;
  const std::string said = in_a_child([&] {
    const rlimit limit{512 * 1024, 512 * 1024};
    std::signal(SIGXFSZ, SIG_IGN);  // the call is to fail, not the process
    setrlimit(RLIMIT_FSIZE, &limit);
    return write_too_much(folder.path());
  });
  EXPECT_THAT(said, AllOf(HasSubstr("a.bin"), HasSubstr("File too large"), HasSubstr("check the"),
                          HasSubstr("[folder empty]")));
}

}  // namespace
}  // namespace carope::test
