// What is fetched from where: the cache, Hugging Face's listing, and the commands as a user runs
// them.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "core/file.h"
#include "core/hash.h"
#include "data/fetch/cache.h"
#include "data/fetch/remote.h"
#include "support/errors.h"
#include "support/http_server.h"
#include "support/program.h"
#include "support/scratch.h"

namespace carope::test {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

const std::string kListing = "/api/datasets/HuggingFaceFW/fineweb-edu/tree/main/sample/10BT";
const std::string kFiles = "/datasets/HuggingFaceFW/fineweb-edu/resolve/main/";

std::string name_of(std::size_t index) { return fmt::format("{:03}_00000.parquet", index); }

json entry_of(std::size_t index, const std::string& content) {
  return {{"type", "file"},
          {"path", "sample/10BT/" + name_of(index)},
          {"size", content.size()},
          {"lfs", {{"oid", sha256(content)}, {"size", content.size()}}}};
}

class Fetch : public ScratchTest {
 protected:
  /// A dataset of ten files with the real one's addresses, listed in disorder, and redirected to
  /// another address as Hugging Face does.
  Fetch() {
    json listing = {{{"type", "directory"}, {"path", "sample/10BT/more"}, {"size", 0}},
                    {{"type", "file"}, {"path", "sample/10BT/README.md"}, {"size", 10}}};
    for (std::size_t i = 10; i-- > 0;) {
      contents_.insert(contents_.begin(), pseudo_random_text(20'000, i));
      listing.push_back(entry_of(i, contents_.front()));
      resources_[kFiles + "sample/10BT/" + name_of(i)] = {
          "", {}, {.status = 302, .headers = fmt::format("Location: /cdn/{}\r\n", i)}};
      resources_[fmt::format("/cdn/{}", i)] = {contents_.front()};
    }
    resources_[kListing] = {listing.dump()};
  }

  Ended fetch_data(const HttpServer& server, const std::string& arguments = "") const {
    return run(fmt::format("data fetch fineweb-edu --cache '{}' {}", folder_.string(), arguments),
               "HF_ENDPOINT=" + server.url());
  }
  /// What the library says of a listing that is of no use.
  std::string refusal(const std::string& listing) const {
    const HttpServer server({{kListing, Resource{listing}}});
    const std::string message =
        message_of<DownloadError>([&] { fineweb_edu(folder_, server.url(), std::nullopt); });
    EXPECT_THAT(message, AllOf(HasSubstr(server.url(kListing)), HasSubstr("HF_ENDPOINT")));
    return message;
  }
  std::filesystem::path data(std::size_t index) const {
    return folder_ / "datasets" / "fineweb-edu" / "sample-10BT" / name_of(index);
  }

  std::vector<std::string> contents_;
  std::map<std::string, Resource> resources_;
};

TEST_F(Fetch, BringsADatasetOnce) {
  const HttpServer server(resources_);
  const Ended first = fetch_data(server);
  EXPECT_EQ(first.status, 0) << first.output;
  EXPECT_THAT(first.output,
              AllOf(HasSubstr("10 of 10 files, 200 kB, into " + data(0).parent_path().string()),
                    HasSubstr("carope data prepare --tokenizer gpt2 --out fineweb-edu '" +
                              data(0).string() + "' '" + data(1).string() + "'"),
                    Not(HasSubstr("--tokens"))));
  for (std::size_t i = 0; i < 10; ++i) {
    EXPECT_TRUE(read_file(data(i)) == contents_[i]);
  }
  const std::size_t requests = server.requests().size();
  EXPECT_EQ(requests, 21U);
  EXPECT_EQ(fetch_data(server).status, 0);
  EXPECT_EQ(server.requests().size(), requests + 1);  // the listing alone
}

TEST_F(Fetch, BringsTheFirstFilesForANumberOfTokens) {
  const HttpServer server(resources_);
  const Ended ended = fetch_data(server, "--tokens 1.92B");  // with the margin 2.016 files
  EXPECT_EQ(ended.status, 0) << ended.output;
  EXPECT_THAT(ended.output, AllOf(HasSubstr("3 of 10 files, 60.0 kB"),
                                  HasSubstr("--tokens 1920000000 '" + data(0).string() + "'"),
                                  HasSubstr(data(2).string()), Not(HasSubstr(name_of(3)))));
  EXPECT_TRUE(std::filesystem::exists(data(2)));
  EXPECT_FALSE(std::filesystem::exists(data(3)));
  const auto files = [&](std::int64_t tokens) {
    return fineweb_edu(folder_, server.url() + "/", tokens).files.size();
  };
  EXPECT_EQ(files(1), 1U);
  EXPECT_EQ(files(950'000'000), 1U);
  EXPECT_EQ(files(960'000'000), 2U);
  EXPECT_EQ(files(kFinewebEduTokens), 10U);
}

TEST_F(Fetch, RefusesANumberOfTokensThatIsNone) {
  const HttpServer server(resources_);
  EXPECT_THAT(fetch_data(server, "--tokens 11B").output,
              AllOf(HasSubstr("--tokens 11000000000"), HasSubstr("give 1 to 10000000000")));
  for (const char* tokens : {"0", "-5", "many", "5X", "1e30", "nan"}) {
    EXPECT_NE(fetch_data(server, fmt::format("--tokens {}", tokens)).status, 0) << tokens;
  }
  EXPECT_EQ(server.requests().size(), 0U);
}

TEST_F(Fetch, GoesOnAfterItWasKilled) {
  constexpr std::size_t kBefore = 700'000;
  const std::string content = pseudo_random_text(1'000'000, 5);
  resources_[kListing] = {json::array({entry_of(0, content)}).dump()};
  resources_["/cdn/0"] = {content, {{.stall_after = kBefore}}};
  const HttpServer server(resources_);
  const std::string cache = folder_.string();
  const std::string url = server.url();
  const std::filesystem::path part = data(0).string() + ".part";
  const pid_t child = fork();
  if (child == 0) {
    dup2(open("/dev/null", O_WRONLY), STDOUT_FILENO);
    execl(CAROPE_PROGRAM, "carope", "data", "fetch", "fineweb-edu", "--cache", cache.c_str(),
          "--base-url", url.c_str(), nullptr);
    _exit(127);
  }
  std::error_code error;
  for (int i = 0; i < 2000 && std::filesystem::file_size(part, error) != kBefore; ++i) {
    std::this_thread::sleep_for(5ms);
  }
  kill(child, SIGKILL);
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(std::filesystem::file_size(part), kBefore);
  EXPECT_FALSE(std::filesystem::exists(data(0)));
  const Ended again = fetch_data(server);
  EXPECT_EQ(again.status, 0) << again.output;
  EXPECT_TRUE(read_file(data(0)) == content);
  EXPECT_THAT(server.ranges("/cdn/0"), ElementsAre("", "bytes=700000-"));
}

TEST_F(Fetch, RefusesAListingOfNoUse) {
  EXPECT_THAT(refusal("<html>Please log in"), HasSubstr("begins with '<html>Please log in'"));
  EXPECT_THAT(refusal(R"({"error": "moved"})"), HasSubstr("not a JSON array"));
  EXPECT_THAT(refusal(resources_[kListing].content.substr(0, 500)), HasSubstr("not a JSON array"));
  EXPECT_THAT(refusal("[]"), HasSubstr("names no Parquet file"));
  EXPECT_THAT(refusal("[1]"), HasSubstr("entry 0"));
  for (const char* pointer : {"/path", "/type", "/size", "/lfs/oid"}) {
    json listing = json::array({entry_of(0, "a"), entry_of(1, "b")});
    listing[1][json::json_pointer(pointer)] = nullptr;
    EXPECT_THAT(refusal(listing.dump()), HasSubstr(fmt::format("no usable '{}'", pointer)));
    listing[1][json::json_pointer(pointer).parent_pointer()].erase(
        json::json_pointer(pointer).back());
    EXPECT_THAT(refusal(listing.dump()),
                AllOf(HasSubstr("entry 1"), HasSubstr(fmt::format("no usable '{}'", pointer))));
  }
  for (const auto& [pointer, value] :
       std::map<std::string, json>{{"/size", -1},
                                   {"/size", 2e18},
                                   {"/lfs/oid", "abc"},
                                   {"/lfs/oid", std::string(64, 'X')}}) {
    json listing = json::array({entry_of(0, "a")});
    listing[0][json::json_pointer(pointer)] = value;
    EXPECT_THAT(refusal(listing.dump()), HasSubstr("cannot be"));
  }
  const HttpServer nothing({});
  EXPECT_THAT(fetch_data(nothing).output,
              AllOf(HasSubstr("carope: "), HasSubstr(kListing), HasSubstr("HTTP 404")));
}

TEST_F(Fetch, CannotBeLedOutOfItsFolder) {
  json listing = json::array({entry_of(0, contents_[0])});
  listing[0]["path"] = "sample/10BT/../../../../../escaped.parquet";
  const HttpServer server({{kListing, Resource{listing.dump()}}});
  EXPECT_EQ(fineweb_edu(folder_, server.url(), std::nullopt).files[0].path,
            data(0).parent_path() / "escaped.parquet");
}

TEST_F(Fetch, RefusesWhatTheDiskHasNoRoomFor) {
  json listing = json::array({entry_of(0, contents_[0])});
  listing[0]["size"] = 900'000'000'000'000;
  resources_[kListing] = {listing.dump()};
  const HttpServer server(resources_);
  const Ended ended = fetch_data(server);
  EXPECT_EQ(ended.status, 1);
  EXPECT_THAT(ended.output,
              AllOf(HasSubstr("900 TB are to be fetched into " + data(0).parent_path().string()),
                    HasSubstr("are free"), HasSubstr("--cache")));
  EXPECT_EQ(server.requests().size(), 1U);
}

TEST_F(Fetch, BringsTheTokenizerOnce) {
  const std::filesystem::path shared =
      std::filesystem::path(CAROPE_SOURCE_DIR) / ".." / "shared" / "data" / "gpt2";
  if (!std::filesystem::exists(shared / "vocab.bpe")) {
    GTEST_SKIP() << "GPT-2's own files are not at " << shared;
  }
  const std::string merges = read_file(shared / "vocab.bpe");
  const std::string vocabulary = read_file(shared / "encoder.json");
  const HttpServer server({{"/mirror/vocab.bpe", {merges, {{.close_after = 123}}}},
                           {"/mirror/encoder.json", {vocabulary}}});
  for (int i = 0; i < 2; ++i) {
    const Ended ended =
        run("tokenizer fetch gpt2", fmt::format("CAROPE_CACHE='{}' CAROPE_GPT2_URL={}/mirror/",
                                                folder_.string(), server.url()));
    EXPECT_EQ(ended.status, 0) << ended.output;
    EXPECT_THAT(ended.output, AllOf(HasSubstr("2 of 2 files, 1.50 MB"),
                                    HasSubstr((folder_ / "tokenizers" / "gpt2").string())));
  }
  EXPECT_TRUE(read_file(folder_ / "tokenizers" / "gpt2" / "vocab.bpe") == merges);
  EXPECT_TRUE(read_file(folder_ / "tokenizers" / "gpt2" / "encoder.json") == vocabulary);
  EXPECT_THAT(server.ranges("/mirror/vocab.bpe"), ElementsAre("", "bytes=123-"));
  EXPECT_THAT(server.ranges("/mirror/encoder.json"), ElementsAre(""));
}

TEST_F(Fetch, SaysWhatItIsAboutToDoAndNotThatItIsDone) {
  const HttpServer server({});
  const Ended ended =
      run("tokenizer fetch gpt2",
          fmt::format("CAROPE_CACHE='{}' CAROPE_GPT2_URL={}", folder_.string(), server.url()));
  EXPECT_EQ(ended.status, 1);
  EXPECT_THAT(ended.output, AllOf(HasSubstr("gpt2: fetching 2 of 2 files, 1.50 MB, into"),
                                  Not(HasSubstr("complete"))));
}

TEST_F(Fetch, KnowsWhatItCanFetch) {
  const Ended tokenizer = run("tokenizer fetch gpt3");
  EXPECT_NE(tokenizer.status, 0);
  EXPECT_THAT(tokenizer.output, AllOf(HasSubstr("gpt3"), HasSubstr("{gpt2}")));
  EXPECT_THAT(run("data fetch c4").output, AllOf(HasSubstr("c4"), HasSubstr("{fineweb-edu}")));
  EXPECT_NE(run("data fetch").status, 0);
  EXPECT_NE(run("tokenizer").status, 0);
  EXPECT_THAT(run("tokenizer fetch --help").output, HasSubstr("CAROPE_GPT2_URL"));
  EXPECT_THAT(run("data fetch --help").output,
              AllOf(HasSubstr("HF_ENDPOINT"), HasSubstr("CAROPE_CACHE"), HasSubstr("500M")));
}

TEST(Cache, IsWhereTheEnvironmentSays) {
  setenv("HOME", "/home/somebody", 1);
  setenv("XDG_CACHE_HOME", "/fast/cache", 1);
  setenv("CAROPE_CACHE", "here", 1);
  EXPECT_EQ(cache_folder(), "here");
  setenv("CAROPE_CACHE", "", 1);
  EXPECT_EQ(cache_folder(), "/fast/cache/carope");
  setenv("XDG_CACHE_HOME", "relative", 1);
  EXPECT_EQ(cache_folder(), "/home/somebody/.cache/carope");
  unsetenv("XDG_CACHE_HOME");
  unsetenv("HOME");
  EXPECT_THAT(message_of<ConfigError>([] { cache_folder(); }), HasSubstr("set CAROPE_CACHE"));
}

}  // namespace
}  // namespace carope::test
