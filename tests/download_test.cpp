// Downloads from a server that drops connections, lies about lengths and serves ranges.
#include "data/fetch/download.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>

#include "core/file.h"
#include "core/hash.h"
#include "support/child.h"
#include "support/errors.h"
#include "support/http_server.h"
#include "support/scratch.h"

namespace carope::test {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kPath = "/file";
constexpr std::size_t kSize = 100'000;

const DownloadOptions kFast{.attempts = 4,
                            .first_delay = 1ms,
                            .longest_delay = 10ms,
                            .connect_timeout = 2000ms,
                            .stall_timeout = 1s,
                            .stall_speed = 1'000'000};

class Downloads : public ScratchTest {
 protected:
  const std::string content_ = pseudo_random_text(kSize, 1);
  const std::string digest_ = sha256(content_);
  const std::filesystem::path path_ = folder_ / "new" / "file.bin";
  const std::filesystem::path part_ = path_.string() + ".part";

  /// Everything is known of the file, as it is of all that the program fetches.
  Download known(const HttpServer& server) const {
    return {server.url(kPath), path_, static_cast<std::int64_t>(kSize), digest_};
  }
  Download without_length(const HttpServer& server) const {
    return {server.url(kPath), path_, std::nullopt, digest_};
  }
  Download unknown(const HttpServer& server) const { return {server.url(kPath), path_}; }

  void leave_part(const std::string& bytes) const {
    make_folder(path_.parent_path());
    std::ofstream(part_, std::ios::binary) << bytes;
  }

  void expect_fetched() const {
    EXPECT_TRUE(read_file(path_) == content_);
    EXPECT_FALSE(std::filesystem::exists(part_));
  }

  /// The message of a download that must fail, and leave nothing under the file's name.
  template <class E = DownloadError>
  std::string failure(const Download& file, const DownloadOptions& options = kFast) const {
    std::string message = message_of<E>([&] { download(file, options); });
    EXPECT_FALSE(std::filesystem::is_regular_file(path_));
    EXPECT_FALSE(std::filesystem::exists(part_) && std::filesystem::is_empty(part_));
    return message;
  }
};

TEST_F(Downloads, BringAFile) {
  const HttpServer server({{kPath, {content_}}});
  download(known(server), kFast);
  expect_fetched();
  ASSERT_EQ(server.requests().size(), 1U);
  EXPECT_EQ(server.requests()[0].range, "");
  EXPECT_EQ(server.requests()[0].user_agent, "carope");
}

TEST_F(Downloads, BringAnEmptyFile) {
  const HttpServer server({{kPath, Resource{""}}});
  download({server.url(kPath), path_, 0, sha256("")}, kFast);
  EXPECT_EQ(read_file(path_), "");
}

TEST_F(Downloads, DoNotRepeatWhatIsThere) {
  const HttpServer server({{kPath, {content_}}});
  download(known(server), kFast);
  download(known(server), kFast);
  download(unknown(server), kFast);
  EXPECT_EQ(server.requests().size(), 1U);
}

TEST_F(Downloads, RepeatWhatIsThereButWrong) {
  const HttpServer server({{kPath, {content_}}});
  make_folder(path_.parent_path());
  write_file(path_, content_.substr(1));
  download(known(server), kFast);
  expect_fetched();
  write_file(path_, content_.substr(1) + "x");  // only the digest tells
  download(known(server), kFast);
  expect_fetched();
  EXPECT_EQ(server.requests().size(), 2U);
}

TEST_F(Downloads, GoOnWhereTheConnectionDropped) {
  const HttpServer server(
      {{kPath, {content_, {{.close_after = 30'000}, {.close_after = 10'000}}}}});
  for (const Download& file : {known(server), unknown(server)}) {
    std::filesystem::remove(path_);
    download(file, kFast);
    expect_fetched();
  }
  EXPECT_THAT(server.ranges(kPath), ElementsAre("", "bytes=30000-", "bytes=40000-", ""));
}

TEST_F(Downloads, MayDropMoreOftenThanAttemptsIfEachBringsSomething) {
  const HttpServer server({{kPath, {content_, {}, {.close_after = 9'000}}}});
  download(known(server), kFast);
  expect_fetched();
  EXPECT_EQ(server.requests().size(), 12U);
}

TEST_F(Downloads, SurviveAReset) {
  const HttpServer server({{kPath, {content_, {{.reset_after = 50'000}, {.reset_after = 0}}}}});
  download(known(server), kFast);
  expect_fetched();
  EXPECT_EQ(server.requests().size(), 3U);
}

TEST_F(Downloads, GoOnAfterAStall) {
  const HttpServer server({{kPath, {content_, {{.stall_after = 20'000}}}}});
  const auto start = std::chrono::steady_clock::now();
  download(known(server), kFast);
  EXPECT_LT(std::chrono::steady_clock::now() - start, 10s);
  expect_fetched();
  EXPECT_THAT(server.ranges(kPath), ElementsAre("", "bytes=20000-"));
}

TEST_F(Downloads, GoOnWhereAnEarlierProcessStopped) {
  const HttpServer server({{kPath, {content_}}});
  leave_part(content_.substr(0, 77'777));
  download(known(server), kFast);
  expect_fetched();
  EXPECT_THAT(server.ranges(kPath), ElementsAre("bytes=77777-"));
}

TEST_F(Downloads, NeedNoRequestIfOnlyTheRenameIsMissing) {
  const HttpServer server({{kPath, {content_}}});
  leave_part(content_);
  download(known(server), kFast);
  expect_fetched();
  EXPECT_EQ(server.requests().size(), 0U);
  std::filesystem::remove(path_);
  leave_part(content_);
  download(without_length(server), kFast);  // the server tells that there is no more
  expect_fetched();
  EXPECT_THAT(server.ranges(kPath), ElementsAre("bytes=100000-"));
}

TEST_F(Downloads, StartAgainIfThePartIsLongerThanTheFile) {
  const HttpServer server({{kPath, {content_}}});
  leave_part(content_ + "x");
  download(known(server), kFast);
  expect_fetched();
  std::filesystem::remove(path_);
  leave_part(content_ + "x");
  download(without_length(server), kFast);
  expect_fetched();
  EXPECT_THAT(server.ranges(kPath), ElementsAre("", "bytes=100001-", ""));
}

TEST_F(Downloads, StartAgainIfThePartIsOfAnotherFile) {
  const HttpServer server({{kPath, {content_}}});
  leave_part(std::string(500, 'x'));
  download(known(server), kFast);
  expect_fetched();
  EXPECT_THAT(server.ranges(kPath), ElementsAre("bytes=500-", ""));
}

TEST_F(Downloads, DoNotTrustAnEarlierPartWithoutAChecksum) {
  const HttpServer server({{kPath, {content_}}});
  leave_part(content_.substr(0, 500));
  download(unknown(server), kFast);
  expect_fetched();
  EXPECT_THAT(server.ranges(kPath), ElementsAre(""));
}

TEST_F(Downloads, StartAgainIfTheServerIgnoresRanges) {
  const HttpServer server({{kPath, {content_, {{.close_after = 60'000}}, {.ranges = false}}}});
  download(unknown(server), kFast);
  expect_fetched();
  EXPECT_THAT(server.ranges(kPath), ElementsAre("", "bytes=60000-"));
}

TEST_F(Downloads, StartAgainIfTheServerSendsAnotherRange) {
  for (const char* range : {"bytes 0-99999/100000", "bytes 30001-99999/100000", "nonsense"}) {
    const HttpServer server(
        {{kPath, {content_, {{.close_after = 30'000}}, {.content_range = range}}}});
    std::filesystem::remove(path_);
    download(unknown(server), kFast);
    expect_fetched();
    EXPECT_THAT(server.ranges(kPath), ElementsAre("", "bytes=30000-", "")) << range;
  }
}

TEST_F(Downloads, StartAgainIfTheFileChangesMeanwhile) {
  const std::string old = pseudo_random_text(kSize, 2);
  const Answer first{.headers = "ETag: \"old\"\r\n", .other_content = old, .close_after = 30'000};
  const HttpServer server({{kPath, {content_, {first}, {.headers = "ETag: \"new\"\r\n"}}}});
  download(unknown(server), kFast);
  expect_fetched();
  EXPECT_THAT(server.ranges(kPath), ElementsAre("", "bytes=30000-", ""));
  std::filesystem::remove(path_);
  const HttpServer grown(  // without an ETag the length tells
      {{kPath, {content_, {{.other_content = old + "x", .close_after = 30'000}}}}});
  download(unknown(grown), kFast);
  expect_fetched();
  EXPECT_THAT(grown.ranges(kPath), ElementsAre("", "bytes=30000-", ""));
}

TEST_F(Downloads, AreNotDeceivedByALengthThatIsTooLarge) {
  const HttpServer server({{kPath, {content_, {{.length_error = 1000}, {.length_error = 1000}}}}});
  download(known(server), kFast);
  expect_fetched();
  EXPECT_EQ(server.requests().size(), 3U);
  std::filesystem::remove(path_);
  const HttpServer again({{kPath, {content_, {{.length_error = 1000}}}}});
  download(unknown(again), kFast);
  expect_fetched();
}

TEST_F(Downloads, AreNotDeceivedByALengthThatIsTooSmall) {
  const HttpServer once({{kPath, {content_, {{.length_error = -1000}}}}});
  download(known(once), kFast);
  expect_fetched();
  std::filesystem::remove(path_);
  download({once.url(kPath), path_, std::nullopt, digest_}, kFast);
  expect_fetched();
  std::filesystem::remove(path_);
  const HttpServer always({{kPath, {content_, {}, {.length_error = -1000}}}});
  EXPECT_THAT(failure(known(always)),
              AllOf(HasSubstr(always.url(kPath)), HasSubstr(path_.string()),
                    HasSubstr("offers 99000 bytes, 100000 were expected"), HasSubstr("check")));
  EXPECT_EQ(always.requests().size(), 4U);
  EXPECT_THAT(failure(without_length(always)), HasSubstr("SHA-256"));
}

TEST_F(Downloads, AreNotDeceivedByAnEndWithoutALength) {
  const HttpServer shorter(
      {{kPath, {content_, {{.announce_length = false, .close_after = 30'000}}}}});
  download(known(shorter), kFast);
  expect_fetched();
  EXPECT_THAT(shorter.ranges(kPath), ElementsAre("", "bytes=30000-"));
  std::filesystem::remove(path_);
  const HttpServer longer(
      {{kPath, {content_, {{.announce_length = false, .other_content = content_ + "more"}}}}});
  // Without a checksum, which would tell too.
  download({longer.url(kPath), path_, static_cast<std::int64_t>(kSize)}, kFast);
  expect_fetched();
  EXPECT_THAT(longer.ranges(kPath), ElementsAre("", ""));
}

TEST_F(Downloads, KeepAPartWhileSomethingElseAnswers) {
  leave_part(content_.substr(0, 50'000));
  const HttpServer server({{kPath, {content_, {{.ranges = false, .other_content = "log in!"}}}}});
  download(known(server), kFast);
  expect_fetched();
  EXPECT_THAT(server.ranges(kPath), ElementsAre("bytes=50000-", "bytes=50000-"));
}

TEST_F(Downloads, RepeatOnceWhatHasTheWrongChecksum) {
  const std::string wrong = pseudo_random_text(kSize, 3);
  const HttpServer once({{kPath, {content_, {{.other_content = wrong}}}}});
  download(known(once), kFast);
  expect_fetched();
  EXPECT_THAT(once.ranges(kPath), ElementsAre("", ""));
  std::filesystem::remove(path_);
  const HttpServer always({{kPath, {wrong}}});
  EXPECT_THAT(failure(known(always)),
              AllOf(HasSubstr(always.url(kPath)), HasSubstr(path_.string()), HasSubstr(digest_),
                    HasSubstr(sha256(wrong)), HasSubstr("try another network or mirror")));
  EXPECT_THAT(always.ranges(kPath), ElementsAre("", ""));
  EXPECT_FALSE(std::filesystem::exists(part_));
}

TEST_F(Downloads, TryAgainWhatIsTransient) {
  for (const int status : {408, 429, 500, 503}) {
    const HttpServer server({{kPath, {content_, {{.status = status}, {.status = status}}}}});
    std::filesystem::remove(path_);
    download(known(server), kFast);
    expect_fetched();
    EXPECT_EQ(server.requests().size(), 3U);
  }
}

TEST_F(Downloads, GiveUpWhatStaysTransient) {
  const HttpServer server({{kPath, {content_, {{.close_after = 2000}}, {.status = 503}}}});
  EXPECT_THAT(failure(known(server)),
              AllOf(HasSubstr(server.url(kPath)), HasSubstr(path_.string()), HasSubstr("HTTP 503"),
                    HasSubstr("run the command again"),
                    HasSubstr("2.00 kB are kept in " + part_.string())));
  EXPECT_EQ(server.requests().size(), 5U);  // the first brought something, so four more
  EXPECT_EQ(std::filesystem::file_size(part_), 2000U);
}

TEST_F(Downloads, WaitAsLongAsTheServerAsks) {
  const HttpServer server(
      {{kPath, {content_, {{.status = 429, .headers = "Retry-After: 1\r\n"}}}}});
  DownloadOptions patient = kFast;
  patient.longest_delay = 5000ms;
  const auto start = std::chrono::steady_clock::now();
  download(known(server), patient);
  EXPECT_GE(std::chrono::steady_clock::now() - start, 1s);
  expect_fetched();
}

TEST_F(Downloads, DoNotTryAgainWhatIsFinal) {
  for (const int status : {204, 304, 403, 404, 410, 416}) {
    const HttpServer server({{kPath, {content_, {}, {.status = status}}}});
    EXPECT_THAT(failure(known(server)),
                AllOf(HasSubstr(server.url(kPath)), HasSubstr(path_.string()),
                      HasSubstr("HTTP " + std::to_string(status)), HasSubstr("check the address")));
    EXPECT_EQ(server.requests().size(), 1U) << status;
  }
  for (const char* url : {"ftp://127.0.0.1/x", "http://", "no address", "file:///etc/passwd"}) {
    const auto start = std::chrono::steady_clock::now();
    DownloadOptions slow = kFast;
    slow.first_delay = slow.longest_delay = 5000ms;
    EXPECT_THAT(failure({url, path_}, slow), AllOf(HasSubstr(url), HasSubstr("check the address")));
    EXPECT_LT(std::chrono::steady_clock::now() - start, 4s);
  }
}

TEST_F(Downloads, FollowRedirectsWithTheirRange) {
  const HttpServer server({{kPath, {"", {}, {.status = 302, .headers = "Location: /moved\r\n"}}},
                           {"/moved", {content_, {{.close_after = 100}, {.close_after = 100}}}}});
  download(known(server), kFast);
  expect_fetched();
  EXPECT_THAT(server.ranges("/moved"), ElementsAre("", "bytes=100-", "bytes=200-"));
}

TEST_F(Downloads, FollowRedirectsOnlyToTheWeb) {
  const HttpServer server(
      {{kPath, {"", {}, {.status = 302, .headers = "Location: file:///etc/passwd\r\n"}}},
       {"/loop", {"", {}, {.status = 302, .headers = "Location: /loop\r\n"}}}});
  EXPECT_THAT(failure(known(server)), HasSubstr("file"));
  EXPECT_EQ(server.requests().size(), 1U);
  EXPECT_THAT(failure({server.url("/loop"), path_}), HasSubstr("redirects"));
}

TEST_F(Downloads, TryAgainWhereNobodyListens) {
  std::string url;
  {
    const HttpServer gone({});
    url = gone.url(kPath);
  }
  EXPECT_THAT(failure({url, path_}),
              AllOf(HasSubstr(url), HasSubstr("onnect"), HasSubstr("4 attempts in a row"),
                    HasSubstr("check the network"), Not(HasSubstr("kept"))));
}

TEST_F(Downloads, AreLeftToOneProcess) {
  const HttpServer server({{kPath, {content_}}});
  make_folder(path_.parent_path());
  FileWriter other(path_, FileWriter::GivenUp::kKeep);
  other.write("what another process has fetched");
  other.flush();
  EXPECT_THAT(failure<FileError>(known(server)),
              AllOf(HasSubstr(part_.string()), HasSubstr("another process"), HasSubstr("wait")));
  EXPECT_EQ(server.requests().size(), 0U);
}

TEST_F(Downloads, RefuseAPlaceThatIsNone) {
  const HttpServer server({{kPath, {content_}}});
  make_folder(path_);
  EXPECT_THAT(failure<FileError>(known(server)),
              AllOf(HasSubstr(path_.string()), HasSubstr("directory")));
  std::filesystem::remove(path_);
  write_file(folder_ / "plain", "");
  EXPECT_THAT(failure<FileError>({server.url(kPath), folder_ / "plain" / "file"}),
              AllOf(HasSubstr((folder_ / "plain").string()), HasSubstr("check the path")));
  EXPECT_EQ(server.requests().size(), 0U);
}

TEST_F(Downloads, GoOnAfterADiskWasFull) {
  constexpr int kNotPossible = 77;
  make_folder(path_.parent_path());
  const pid_t child = fork();
  if (child == 0) {
    if (!mount_small(path_.parent_path(), 65'536)) {
      _exit(kNotPossible);
    }
    const HttpServer server({{kPath, {content_}}});
    EXPECT_THAT(failure<FileError>(known(server)),
                AllOf(HasSubstr(part_.string()), HasSubstr("No space left"),
                      HasSubstr("free some space"), HasSubstr("the next run goes on from there")));
    EXPECT_EQ(server.requests().size(), 1U);
    EXPECT_EQ(std::filesystem::file_size(part_), 65'536U);
    ASSERT_TRUE(resize_mounted(path_.parent_path(), 1 << 20));
    download(known(server), kFast);
    expect_fetched();
    EXPECT_THAT(server.ranges(kPath), ElementsAre("", "bytes=65536-"));
    _exit(HasFailure() ? 1 : 0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == kNotPossible) {
    GTEST_SKIP() << "this user may not mount a small file system";
  }
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace carope::test
