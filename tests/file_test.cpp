// Files that appear when they are complete, hashes, and how amounts are shown.
#include "core/file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>

#include "core/error.h"
#include "core/hash.h"
#include "core/progress.h"
#include "support/child.h"
#include "support/errors.h"
#include "support/folder.h"

namespace carope::test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

constexpr std::size_t kBuffer = std::size_t{1} << 20;  // that a FileWriter fills before it writes

std::string pattern(std::size_t size, int seed = 0) {
  std::string bytes(size, '\0');
  for (std::size_t i = 0; i < size; ++i) {
    bytes[i] = static_cast<char>((i * 7 + i / 251 + static_cast<std::size_t>(seed)) % 256);
  }
  return bytes;
}

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

TEST(FileWriter, ShowsAFileOnlyWhenItIsComplete) {
  const TemporaryFolder folder;
  write_bytes(folder / "a", "old");
  FileWriter file(folder / "a");
  file.write("new ");
  file.flush();
  EXPECT_EQ(read_file(folder / "a"), "old");
  EXPECT_EQ(read_file(folder / "a.part"), "new ");
  file.write("content");
  EXPECT_EQ(file.size(), 11U);
  file.commit();
  EXPECT_EQ(read_file(folder / "a"), "new content");
  EXPECT_FALSE(fs::exists(folder / "a.part"));
}

TEST(FileWriter, LeavesTheOldFileWhenGivenUp) {
  const TemporaryFolder folder;
  write_bytes(folder / "a", "old");
  { FileWriter(folder / "a").write(pattern(3 * kBuffer)); }
  { FileWriter(folder / "b").write("something"); }
  EXPECT_EQ(read_file(folder / "a"), "old");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 1);
}

TEST(FileWriter, WritesPiecesOfAnySize) {
  const TemporaryFolder folder;
  std::string expected;
  FileWriter file(folder / "a");
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, kBuffer - 1, std::size_t{1},
                                 kBuffer, kBuffer + 1, std::size_t{5}, 3 * kBuffer}) {
    const std::string piece = pattern(size, static_cast<int>(expected.size() % 97));
    file.write(piece);
    expected += piece;
    EXPECT_EQ(file.size(), expected.size());
  }
  file.commit();
  EXPECT_TRUE(read_file(folder / "a") == expected);
}

TEST(FileWriter, RewritesWhatIsOnDiskAndWhatIsNot) {
  const TemporaryFolder folder;
  std::string expected = pattern(kBuffer + 1000);
  FileWriter file(folder / "a");
  file.write(std::string_view(expected).substr(0, kBuffer));
  file.write(std::string_view(expected).substr(kBuffer));
  const std::string patch = "0123456789";
  for (const std::size_t at : {std::size_t{0}, kBuffer - 5, kBuffer + 990}) {
    file.rewrite(at, bytes_of(patch));
    expected.replace(at, patch.size(), patch);
  }
  file.write("the end");
  expected += "the end";
  EXPECT_EQ(file.size(), expected.size());
  file.commit();
  EXPECT_TRUE(read_file(folder / "a") == expected);
}

TEST(FileWriter, GoesOnBehindWhatWasKept) {
  const TemporaryFolder folder;
  {
    FileWriter file(folder / "a", FileWriter::GivenUp::kKeep);
    file.write("one");
    file.flush();
    EXPECT_THAT(
        message_of<FileError>([&] { FileWriter(folder / "a", FileWriter::GivenUp::kKeep); }),
        AllOf(HasSubstr("a.part is being written by another process"), HasSubstr("wait")));
  }
  FileWriter file(folder / "a", FileWriter::GivenUp::kKeep);
  EXPECT_EQ(file.size(), 3U);
  file.write("two");
  file.commit();
  EXPECT_EQ(read_file(folder / "a"), "onetwo");
  FileWriter again(folder / "a", FileWriter::GivenUp::kKeep);
  again.write("lost");
  again.restart();
  again.write("won");
  again.commit();
  EXPECT_EQ(read_file(folder / "a"), "won");
}

TEST(FileWriter, SaysWhyItCannotWrite) {
  const TemporaryFolder folder;
  EXPECT_THAT(
      message_of<FileError>([&] { write_file(folder / "no/a", ""); }),
      AllOf(HasSubstr("cannot write"), HasSubstr("no/a.part"), HasSubstr("check the path")));
  fs::create_directories(folder / "taken" / "by a folder");
  EXPECT_THAT(message_of<FileError>([&] { write_file(folder / "taken", "x"); }),
              AllOf(HasSubstr("cannot write"), HasSubstr("taken: it is a directory"),
                    HasSubstr("name a file in it")));
  EXPECT_FALSE(fs::exists(folder / "taken.part"));
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(message_of<FileError>([&] { write_file(folder / "pipe", "x"); }),
              HasSubstr("pipe: it is a device or a pipe"));
  EXPECT_TRUE(fs::is_fifo(folder / "pipe"));
}

TEST(ReadFile, GivesEveryByte) {
  const TemporaryFolder folder;
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{1}, kBuffer - 1, kBuffer, kBuffer + 1, 2 * kBuffer}) {
    const std::string content = pattern(size);
    write_bytes(folder / "a", content);
    EXPECT_TRUE(read_file(folder / "a") == content) << size;
    const MappedFile mapped(folder / "a");
    ASSERT_EQ(mapped.bytes().size(), size);
    EXPECT_TRUE(std::equal(mapped.bytes().begin(), mapped.bytes().end(), bytes_of(content).begin()))
        << size;
    EXPECT_EQ(size_of_file(folder / "a"), static_cast<std::int64_t>(size));
  }
}

TEST(ReadFile, RefusesWhatIsNoFile) {
  const TemporaryFolder folder;
  fs::create_symlink("loop", folder / "loop");
  const std::vector<std::function<void(const fs::path&)>> readers{
      [](const fs::path& path) { read_file(path); },
      [](const fs::path& path) { MappedFile mapped(path); },
      [](const fs::path& path) { size_of_file(path); },
      [](const fs::path& path) { require_file(path); }};
  for (const auto& read : readers) {
    EXPECT_THAT(message_of<FileError>([&] { read(folder / "no"); }),
                AllOf(HasSubstr("no does not exist"), HasSubstr("check the path")));
    EXPECT_THAT(message_of<FileError>([&] { read(folder.path()); }),
                AllOf(HasSubstr(folder.path().string() + " is a directory"), HasSubstr("name a")));
    EXPECT_THAT(message_of<FileError>([&] { read(folder / "loop"); }),
                HasSubstr("loop: Too many levels of symbolic links; check the path"));
  }
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(message_of<FileError>([&] { size_of_file(folder / "pipe"); }),
              AllOf(HasSubstr("pipe is a device or a pipe"), HasSubstr("write its content")));
}

TEST(MappedFile, Moves) {
  const TemporaryFolder folder;
  MappedFile first(write_bytes(folder / "a", "first"));
  MappedFile second(write_bytes(folder / "b", "second"));
  second = std::move(first);
  EXPECT_EQ(second.bytes().size(), 5U);
  const MappedFile third = std::move(second);
  EXPECT_EQ(third.bytes()[4], std::byte{'t'});
  EXPECT_TRUE(MappedFile().bytes().empty());
}

TEST(FolderLock, KeepsOthersOut) {
  const TemporaryFolder folder;
  {
    const FolderLock lock(folder.path());
    const std::string said = in_a_child(
        [&] { return message_of<FileError>([&] { FolderLock second(folder.path()); }); });
    EXPECT_THAT(said, AllOf(HasSubstr(folder.path().string() + " is being written by another"),
                            HasSubstr("wait until it has ended")));
  }
  const FolderLock again(folder.path());
  EXPECT_THAT(message_of<FileError>([&] { FolderLock lock(folder / "no"); }),
              AllOf(HasSubstr("no: "), HasSubstr("check the path")));
}

TEST(Sha256, MatchesItsPublishedTestVectors) {
  EXPECT_EQ(sha256(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  constexpr const char* kMillion =
      "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0";
  EXPECT_EQ(sha256(std::string(1'000'000, 'a')), kMillion);
  Sha256 hash;
  const std::string piece(777, 'a');
  for (std::size_t left = 1'000'000; left > 0; left -= std::min(left, piece.size())) {
    hash.add(std::string_view(piece).substr(0, left));
  }
  EXPECT_EQ(hash.digest(), kMillion);
}

TEST(Sha256, OfAFileIsThatOfItsBytes) {
  const TemporaryFolder folder;
  EXPECT_EQ(sha256_of_file(write_bytes(folder / "a", "")), sha256(""));
  EXPECT_EQ(sha256_of_file(write_bytes(folder / "a", "abc")), sha256("abc"));
}

TEST(Si, ShowsThreeDigits) {
  EXPECT_EQ(si(0, "tokens"), "0 tokens");
  EXPECT_EQ(si(17, "tokens"), "17 tokens");
  EXPECT_EQ(si(999, "B"), "999 B");
  EXPECT_EQ(si(999.6, "B"), "1.00 kB") << "not 1000 B";
  EXPECT_EQ(si(1000, "B"), "1.00 kB");
  EXPECT_EQ(si(9'994, "B"), "9.99 kB");
  EXPECT_EQ(si(9'996, "B"), "10.0 kB") << "not 10.00 kB";
  EXPECT_EQ(si(99'960, "B"), "100 kB") << "not 100.0 kB";
  EXPECT_EQ(si(1'234'567, "tokens"), "1.23 M tokens");
  EXPECT_EQ(si(999'600'000, "B"), "1.00 GB");
  EXPECT_EQ(si(5e15, "B"), "5000 TB");
  EXPECT_EQ(si(-1'234, "B"), "-1.23 kB");
}

TEST(Duration, IsAsPeopleSayIt) {
  EXPECT_EQ(duration(-1), "0 s");
  EXPECT_EQ(duration(0.4), "0 s");
  EXPECT_EQ(duration(42), "42 s");
  EXPECT_EQ(duration(59.6), "1 min 00 s") << "not 60 s";
  EXPECT_EQ(duration(185), "3 min 05 s");
  EXPECT_EQ(duration(3599.6), "1 h 00 min") << "not 60 min";
  EXPECT_EQ(duration(7800), "2 h 10 min");
  EXPECT_EQ(duration(200'000), "55 h 33 min");
}

TEST(Progress, SaysNothingOfShortWorkInALog) {
  testing::internal::CaptureStderr();
  {
    Progress progress("Encoding", 10, "B");
    progress.advance(5);
    progress.advance_to(10);
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(Progress, DrawsABarOnATerminal) {
  const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
  if (terminal < 0 || grantpt(terminal) != 0 || unlockpt(terminal) != 0) {
    GTEST_SKIP() << "there is no pseudo-terminal here";
  }
  in_a_child([&] {
    dup2(open(ptsname(terminal), O_RDWR | O_NOCTTY), STDERR_FILENO);
    Progress progress("Encoding", 2000, "B");
    progress.start_at(500);
    progress.note("31.2 M tokens");
    std::this_thread::sleep_for(std::chrono::milliseconds(250));
    progress.advance_to(1000);
    progress.advance(1000);  // too soon to be drawn on its own
    return std::string();
  });
  std::string drawn(4096, '\0');
  const ssize_t count = read(terminal, drawn.data(), drawn.size());
  ASSERT_GT(count, 0);
  drawn.resize(static_cast<std::size_t>(count));
  close(terminal);
  EXPECT_THAT(drawn, HasSubstr("\rEncoding [============            ]  50 %  1.00 kB  "));
  EXPECT_THAT(drawn, AllOf(HasSubstr("B/s  31.2 M tokens  "), HasSubstr(" s left")));
  EXPECT_THAT(drawn, HasSubstr("\rEncoding [========================] 100 %  2.00 kB  "));
  EXPECT_THAT(drawn, HasSubstr("  in 0 s"));
}

}  // namespace
}  // namespace carope::test
