// Preparing that was stopped, by anything at any moment, goes on and comes to the same shards.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "core/error.h"
#include "core/file.h"
#include "core/random.h"
#include "data/shards/prepare.h"
#include "support/child.h"
#include "support/errors.h"
#include "support/prepared_folder.h"
#include "support/program.h"

namespace carope::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

/// The bytes of all files of a folder by their names, and that of its tokenizer.
std::map<std::string, std::string> contents_of(const fs::path& folder) {
  std::map<std::string, std::string> contents;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) {
      contents.emplace(entry.path().filename().string(), read_file(entry.path()));
    }
  }
  return contents;
}

class Resume : public testing::Test {
 protected:
  void SetUp() override {
    inputs_ = {write_bytes(folder_ / "a.jsonl.gz", gzip(lines_of_json(random_documents(40)))),
               write_bytes(folder_ / "b.txt", random_text(20'000, 1)),
               write_bytes(folder_ / "c.jsonl", "\n" + lines_of_json(random_documents(30)))};
    whole_ = folder_ / "whole";
    prepare(config_of(whole_));
    expected_ = contents_of(whole_);
    ASSERT_GT(expected_.size(), 12U);
  }

  PrepareConfig config_of(const fs::path& out) const {
    PrepareConfig config;
    config.inputs = inputs_;
    config.tokenizer = kSmallTokenizer;
    config.folder = out;
    config.name = "x";
    config.shard_tokens = 2000;
    config.threads = 2;
    return config;
  }

  /// A folder as a call leaves it that ends after so many shards.
  fs::path stopped_after(std::size_t shards) const {
    const fs::path out = folder_ / fmt::format("stopped{}", shards);
    fs::remove_all(out);
    fs::copy(whole_, out, fs::copy_options::recursive);
    json manifest = json::parse(expected_.at("manifest.json"));
    while (manifest["shards"].size() > shards) {
      fs::remove(out / manifest["shards"].back()["file"]);
      manifest["shards"].erase(manifest["shards"].size() - 1);
    }
    manifest["complete"] = false;
    for (json& input : manifest["inputs"]) {
      input["sha256"] = shards == 0 ? json("") : input["sha256"];
    }
    write_bytes(out / "manifest.json", manifest.dump());
    return out;
  }

  std::size_t shard_count() const { return shards_of(whole_).size(); }

  /// What is said of this work in a folder of finished shards, which must stay as they are.
  std::string refusal(const PrepareConfig& config) const {
    const auto files = [&] {
      auto found = identities_in(config.folder);
      found.erase("manifest.json");  // says the same, perhaps written again
      return found;
    };
    const auto before = files();
    const std::string message = message_of<Error>([&] { prepare(config); });
    EXPECT_EQ(files(), before);
    return message;
  }

  TemporaryFolder folder_;
  std::vector<fs::path> inputs_;
  fs::path whole_;
  std::map<std::string, std::string> expected_;  // of an uninterrupted run
};

TEST_F(Resume, GoesOnBehindAnyShard) {
  for (std::size_t shards = 0; shards <= shard_count(); ++shards) {
    const fs::path out = stopped_after(shards);
    const std::string next = fmt::format("x_{}_{:06}.bin", shards == 0 ? "val" : "train", shards);
    const auto finished = identities_in(out);
    write_bytes(out / (next + ".part"), "begun");
    write_bytes(out / next, "not noted");  // a call may end between a shard and its note
    write_bytes(out / "x_train_000099.bin", "not noted");
    write_bytes(out / "manifest.json.part", "begun");
    EXPECT_TRUE(prepare(config_of(out)).complete);
    EXPECT_TRUE(contents_of(out) == expected_) << "after " << shards << " shards";
    for (const auto& [name, identity] : finished) {
      EXPECT_TRUE(name == "manifest.json" || identity_of(out / name) == identity)
          << name << " was written again after " << shards << " shards";
    }
  }
}

TEST_F(Resume, ChangesNothingOnceAllIsDone) {
  const auto before = identities_in(whole_);
  EXPECT_TRUE(prepare(config_of(whole_)).complete);
  EXPECT_EQ(identities_in(whole_), before);
}

TEST_F(Resume, RefusesOtherSettings) {
  const auto refusal_with = [&](const std::function<void(PrepareConfig&)>& change) {
    PrepareConfig config = config_of(stopped_after(3));
    change(config);
    const std::string message = refusal(config);
    EXPECT_THAT(message, AllOf(HasSubstr("stopped3 holds shards made with other settings"),
                               HasSubstr("choose another folder, or give --overwrite")));
    return message;
  };
  using Config = PrepareConfig;
  EXPECT_THAT(refusal_with([](Config& c) { c.shard_tokens = 1999; }),
              HasSubstr("tokens a shard: 1999 instead of 2000"));
  EXPECT_THAT(refusal_with([](Config& c) { c.validation_tokens = 5; }),
              HasSubstr("validation tokens: 5 instead of 2000"));
  EXPECT_THAT(refusal_with([](Config& c) { c.most_tokens = 9000; }),
              HasSubstr("tokens in all: 9000 instead of 0"));
  EXPECT_THAT(refusal_with([](Config& c) { c.name = std::string("y"); }),
              HasSubstr("name: y instead of x"));
  EXPECT_THAT(refusal_with([](Config& c) { c.format.text_field = std::string("id"); }),
              HasSubstr("text field: id instead of text"));
  EXPECT_THAT(refusal_with([](Config& c) { c.format.delimiter = std::string("--"); }),
              HasSubstr("delimiter: -- instead of "));
  EXPECT_THAT(refusal_with([](Config& c) { std::swap(c.inputs[0], c.inputs[1]); }),
              HasSubstr("input: "));
  EXPECT_THAT(refusal_with([](Config& c) {
                c.validation = {c.inputs.front()};
                c.inputs.erase(c.inputs.begin());
              }),
              HasSubstr("an input for validation only: true instead of false"));
  save_tokenizer(Tokenizer({Tokenizer::load(kSmallTokenizer).definition().tokens,
                            {},
                            {{"<|endoftext|>", 1023}, {"<|other|>", 1024}}},
                           "other"),
                 folder_ / "other.json");
  EXPECT_THAT(refusal_with([&](Config& c) { c.tokenizer = folder_ / "other.json"; }),
              HasSubstr("tokenizer: "));
}

TEST_F(Resume, RefusesInputsThatHaveChanged) {
  const std::string text = read_file(inputs_[0]);
  const std::size_t last = shard_count() - 1;
  write_bytes(inputs_[0], text + gzip(lines_of_json({"more"})));
  EXPECT_THAT(refusal(config_of(stopped_after(1))), HasSubstr("bytes of an input: "));
  EXPECT_THAT(refusal(config_of(whole_)), HasSubstr("bytes of an input: "));
  write_bytes(inputs_[0], text);
  // The same size, found by its hash when it is read again.
  const std::string lines = read_file(inputs_[2]);
  write_bytes(inputs_[2], lines_of_json(random_documents(30)) + "\n");
  EXPECT_THAT(refusal(config_of(stopped_after(last))),
              AllOf(HasSubstr("c.jsonl is not what it was when"), HasSubstr("--overwrite")));
  write_bytes(inputs_[2], lines);
  EXPECT_TRUE(prepare(config_of(folder_ / fmt::format("stopped{}", last))).complete);
}

TEST_F(Resume, TakesLaterInputsAsTheyAreNow) {
  // Those that a user had to repair, or leave out, after they stopped the call before.
  const fs::path out = stopped_after(2);
  write_bytes(inputs_[2], lines_of_json({"Repaired."}));
  inputs_.push_back(write_bytes(folder_ / "d.txt", "One more."));
  prepare(config_of(out));
  Texts documents = random_documents(40);
  documents.insert(documents.end(), {random_text(20'000, 1), "Repaired.", "One more."});
  EXPECT_TRUE(joined(shards_of(out)) == tokens_of(documents));
  const json manifest = json::parse(read_file(out / "manifest.json"));
  ASSERT_EQ(manifest["inputs"].size(), 4U);
  EXPECT_EQ(manifest["inputs"][2]["bytes"], fs::file_size(inputs_[2]));
}

TEST_F(Resume, RefusesFinishedShardsThatAreNotWhatTheyWere) {
  const auto remedy = AllOf(HasSubstr("x_train_000001.bin"), HasSubstr("--overwrite"));
  for (const bool complete : {false, true}) {
    const fs::path out = complete ? whole_ : stopped_after(3);
    const fs::path shard = out / "x_train_000001.bin";
    const std::string whole = read_file(shard);
    write_bytes(shard, whole.substr(0, whole.size() - 2));
    EXPECT_THAT(refusal(config_of(out)), AllOf(HasSubstr("is truncated"), remedy));
    write_bytes(shard, read_file(out / "x_val_000000.bin").substr(0, 1024));
    EXPECT_THAT(refusal(config_of(out)), AllOf(HasSubstr("truncated"), remedy));
    write_bytes(shard, "");
    EXPECT_THAT(refusal(config_of(out)), AllOf(HasSubstr("is empty"), remedy));
    fs::remove(shard);
    EXPECT_THAT(refusal(config_of(out)), AllOf(HasSubstr("does not exist"), remedy));
    std::string shorter = whole.substr(0, whole.size() - 2);
    --shorter[8];  // the header's count: a shard, but not the one that was made
    write_bytes(shard, shorter);
    EXPECT_THAT(refusal(config_of(out)),
                AllOf(HasSubstr("has 1999 tokens, the manifest says 2000"), remedy));
    write_bytes(shard, whole);
    EXPECT_TRUE(prepare(config_of(out)).complete);
    EXPECT_TRUE(contents_of(out) == expected_);
  }
}

TEST_F(Resume, RefusesFoldersThatAreNotItsOwn) {
  const fs::path out = folder_ / "foreign";
  fs::create_directories(out);
  write_bytes(out / "edu_train_000001.bin", "precious");
  write_bytes(out / "notes.txt", "precious");
  EXPECT_THAT(refusal(config_of(out)),
              AllOf(HasSubstr("foreign holds shards that are not of this program's making"),
                    HasSubstr("choose another folder, or give --overwrite")));
  for (const char* manifest : {"", "{", "[]", "{\"version\": 1}", "{\"version\": \"one\"}"}) {
    write_bytes(out / "manifest.json", manifest);
    EXPECT_THAT(refusal(config_of(out)),
                AllOf(HasSubstr("manifest.json is not a manifest"), HasSubstr("--overwrite")));
  }
  write_bytes(out / "manifest.json", "{\"version\": 2}");
  EXPECT_THAT(refusal(config_of(out)), AllOf(HasSubstr("has version 2"), HasSubstr("again")));
  PrepareConfig config = config_of(out);
  config.overwrite = true;
  prepare(config);
  EXPECT_EQ(read_file(out / "notes.txt"), "precious");
  fs::remove(out / "notes.txt");
  EXPECT_TRUE(contents_of(out) == expected_);
}

TEST_F(Resume, OverwritesAllThatWasThere) {
  PrepareConfig config = config_of(stopped_after(4));
  write_bytes(config.folder / "x_train_000077.bin.part", "begun");
  config.shard_tokens = 5000;
  config.name = "y";
  config.overwrite = true;
  prepare(config);
  const auto shards = shards_of(config.folder);
  EXPECT_TRUE(joined(shards) == joined(shards_of(whole_)));
  EXPECT_EQ(shards.front().size(), 5000);
  EXPECT_EQ(shards.front().name, "y_val_000000.bin");
  EXPECT_EQ(identities_in(config.folder).size(), shards.size() + 1);
}

TEST_F(Resume, IsFreeToChangeUntilAShardIsFinished) {
  const fs::path out = folder_ / "out";
  PrepareConfig config = config_of(out);
  config.name = "y";
  config.inputs = {write_bytes(folder_ / "bad.jsonl", "{\"text\": \"x\"}\nbad")};
  EXPECT_THAT(message_of<FileError>([&] { prepare(config); }), HasSubstr("bad.jsonl, line 2"));
  EXPECT_TRUE(shards_of(out).empty());
  ASSERT_TRUE(Manifest::load(out)) << "the first shard would be taken for a foreign one";
  write_bytes(out / "y_val_000000.bin", "not noted");
  prepare(config_of(out));
  EXPECT_TRUE(contents_of(out) == expected_);
}

TEST_F(Resume, IsForOneProcessAtATime) {
  const fs::path out = stopped_after(2);
  {
    const FolderLock other(out);
    EXPECT_THAT(refusal(config_of(out)), AllOf(HasSubstr("is being written by another process"),
                                               HasSubstr("wait until it has ended")));
  }
  EXPECT_TRUE(prepare(config_of(out)).complete);
}

TEST_F(Resume, SurvivesBeingKilledAtAnyMoment) {
  const fs::path out = folder_ / "killed";
  const fs::path large =
      write_bytes(folder_ / "large.jsonl.zst", zstd(lines_of_json(random_documents(4000, 1500))));
  const std::vector<std::string> arguments{"carope",
                                           "data",
                                           "prepare",
                                           "--tokenizer",
                                           kSmallTokenizer,
                                           "--out",
                                           out.string(),
                                           "--name",
                                           "x",
                                           "--shard-tokens",
                                           "30k",
                                           "--threads",
                                           "2",
                                           inputs_[0].string(),
                                           large.string()};
  const auto start = [&] {
    const pid_t child = fork();
    if (child == 0) {
      dup2(open("/dev/null", O_WRONLY), STDOUT_FILENO);
      dup2(STDOUT_FILENO, STDERR_FILENO);
      std::vector<char*> words;
      for (const std::string& argument : arguments) {
        words.push_back(const_cast<char*>(argument.c_str()));
      }
      words.push_back(nullptr);
      execv(CAROPE_PROGRAM, words.data());
      _exit(127);
    }
    return child;
  };
  const auto files = [&] { return std::distance(fs::directory_iterator(out), {}); };
  fs::create_directories(out);
  const Philox random(8, 9);
  std::map<std::string, Identity> finished;
  int killed = 0;
  int status = 0;
  for (std::uint64_t round = 0; round < 18; ++round) {
    const auto before = files();
    const pid_t child = start();
    // Some are killed as they start, others after a few shards more.
    const auto wanted = before + static_cast<std::ptrdiff_t>(random.below(4, 2 * round));
    bool running = true;
    while (files() < wanted && running) {
      running = waitpid(child, &status, WNOHANG) == 0;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random.below(8000, 2 * round + 1)));
    if (running) {
      kill(child, SIGKILL);
      waitpid(child, &status, 0);
      killed += WIFSIGNALED(status) ? 1 : 0;
    }
    shards_of(out);  // checks that whatever has its final name is whole
    for (const auto& [name, identity] : finished) {
      ASSERT_EQ(identity_of(out / name), identity) << name << " was written again";
    }
    const auto manifest = Manifest::load(out);
    for (std::size_t i = 0; manifest && i < manifest->shards.size(); ++i) {
      const std::string& name = manifest->shards[i].file;
      finished.emplace(name, identity_of(out / name));
    }
  }
  EXPECT_GT(killed, 10);
  EXPECT_GT(finished.size(), 5U);
  waitpid(start(), &status, 0);
  EXPECT_EQ(status, 0);
  PrepareConfig config = config_of(folder_ / "uninterrupted");
  config.inputs = {inputs_[0], large};
  config.shard_tokens = 30'000;
  prepare(config);
  EXPECT_TRUE(contents_of(out) == contents_of(config.folder));
  for (const auto& [name, identity] : finished) {
    EXPECT_EQ(identity_of(out / name), identity) << name << " was written again";
  }
}

TEST_F(Resume, OnAFullDiskKeepsWhatIsDoneAndGoesOnWithMoreSpace) {
  const fs::path out = folder_ / "disk";
  fs::create_directories(out);
  std::string files;
  for (const fs::path& input : inputs_) {
    files += fmt::format(" '{}'", input.string());
  }
  const std::string command = fmt::format(
      "data prepare --tokenizer '{}' --out '{}' --name x --shard-tokens 2000 --threads 2{}",
      kSmallTokenizer, out.string(), files);
  const std::string said = in_a_child([&]() -> std::string {
    if (!mount_small(out, 120 * 1024)) {
      return "no mount";
    }
    const Ended full = run(command);
    const auto manifest = Manifest::load(out);
    const auto shards = shards_of(out);
    const auto finished = identities_in(out);
    resize_mounted(out, 10 << 20);
    const Ended after = run(command);
    bool kept = manifest && manifest->shards.size() >= 3 && !manifest->complete;
    for (std::size_t i = 0; kept && i < manifest->shards.size(); ++i) {
      const std::string& name = manifest->shards[i].file;
      kept = finished.contains(name) && finished.at(name) == identity_of(out / name);
    }
    return fmt::format("{} {} | {} | {} {} {}", full.status, full.output, kept ? "kept" : "lost",
                       after.status, after.output,
                       contents_of(out) == expected_ ? "same" : "other");
  });
  if (said == "no mount") {
    GTEST_SKIP() << "a small file system cannot be mounted here";
  }
  EXPECT_THAT(said, testing::StartsWith("1 carope: cannot write " + out.string() + "/x_train_"));
  EXPECT_THAT(said, AllOf(HasSubstr("No space left on device; free some space"),
                          HasSubstr("run the command again"), HasSubstr("| kept | 0 "),
                          testing::EndsWith("same")));
}

TEST_F(Resume, OverTheLargestFileSizeKeepsWhatIsDone) {
  const fs::path out = folder_ / "limited";
  const std::string command = fmt::format(
      "data prepare --tokenizer '{}' --out '{}' --val-tokens 1000 --shard-tokens 1M '{}'",
      kSmallTokenizer, out.string(),
      write_bytes(folder_ / "a.txt", random_text(1'000'000, 1)).string());
  // 200 blocks of 512 bytes; the file cannot grow, and the signal that would end it is ignored.
  const Ended stopped = run(command, "trap '' XFSZ; ulimit -f 200;");
  EXPECT_EQ(stopped.status, 1);
  EXPECT_THAT(stopped.output, AllOf(HasSubstr("cannot write " + out.string()),
                                    HasSubstr("limited_train_000001.bin.part: File too large"),
                                    HasSubstr("check the")));
  ASSERT_EQ(shards_of(out).size(), 1U);
  const Identity validation = identity_of(out / "limited_val_000000.bin");
  EXPECT_EQ(run(command).status, 0);
  EXPECT_EQ(identity_of(out / "limited_val_000000.bin"), validation);
  EXPECT_TRUE(joined(shards_of(out)) == tokens_of({random_text(1'000'000, 1)}));
}

}  // namespace
}  // namespace carope::test
