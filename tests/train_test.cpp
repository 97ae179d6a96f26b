// Training as a user runs it: the program, its folder, and what it leaves when it is stopped.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "core/file.h"
#include "core/random.h"
#include "model/gpt.h"
#include "support/child.h"
#include "support/cuda_contexts.h"
#include "support/folder.h"
#include "support/program.h"
#include "support/shard_files.h"
#include "support/training.h"
#include "train/checkpoint.h"

namespace carope::test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using Json = nlohmann::json;

/// A tiny model on tokens that repeat with noise, so that there is something to learn.
class Training : public testing::Test {
 protected:
  Training() { write_training_data(folder_ / "data"); }

  std::string arguments(const std::string& run, const std::string& more = "",
                        int threads = 2) const {
    return "train --threads " + std::to_string(threads) + " --out '" + (folder_ / run).string() +
           "' " + small_training(folder_ / "data") + " " + more;
  }

  /// The lines of a run's metrics without what depends on the clock.
  std::vector<Json> metrics(const std::string& run) const {
    std::istringstream lines(read_file(folder_ / run / "metrics.jsonl"));
    std::vector<Json> metrics;
    for (std::string line; std::getline(lines, line);) {
      metrics.push_back(Json::parse(line));
      metrics.back().erase("seconds");
      metrics.back().erase("tokens_per_second");
    }
    return metrics;
  }

  /// How many lines of metrics a run has written so far.
  std::int64_t lines_of(const std::string& run) const {
    const fs::path path = folder_ / run / "metrics.jsonl";
    const std::string text = fs::exists(path) ? read_file(path) : "";
    return std::count(text.begin(), text.end(), '\n');
  }

  static int wait_for(pid_t child) {
    int status = 0;
    waitpid(child, &status, 0);
    return status;
  }

  TemporaryFolder folder_;
};

TEST_F(Training, LearnsAndLeavesARun) {
  const Ended ended = run(arguments("a"));
  ASSERT_EQ(ended.status, 0) << ended.output;
  EXPECT_THAT(ended.output, AllOf(HasSubstr("step 100/100  loss"), HasSubstr("  MFU "),
                                  HasSubstr("validation loss"), HasSubstr("saved ")));
  const auto lines = metrics("a");
  ASSERT_EQ(lines.size(), 104U);  // 100 steps, 4 validations
  EXPECT_GT(lines.front()["loss"], 3.8);
  EXPECT_LT(lines.back()["validation_loss"], 2.6);
  EXPECT_EQ(list_checkpoints(folder_ / "a").size(), 2U);
  EXPECT_EQ(saved_config(find_checkpoint(folder_ / "a")).model.width, 16);
  const Json described = Json::parse(read_file(folder_ / "a" / "run.json"));
  EXPECT_EQ(described["seed"], 1);
  EXPECT_THAT(read_file(folder_ / "a" / "config.toml"), HasSubstr("learning_rate = 0.01\n"));
}

TEST_F(Training, DoesNotDependOnTheNumberOfThreads) {
  ASSERT_EQ(run(arguments("a")).status, 0);
  ASSERT_EQ(run(arguments("b", "", 1)).status, 0);
  EXPECT_EQ(metrics("a"), metrics("b"));
}

TEST_F(Training, GoesOnBitForBitAfterItWasKilled) {
  ASSERT_EQ(run(arguments("whole")).status, 0);
  const Philox random(static_cast<std::uint64_t>(getpid()), 1);
  std::uint64_t kills = 0;
  bool ended = false;
  for (std::uint64_t attempt = 0; !ended && attempt < 200; ++attempt) {
    const bool resume = !list_checkpoints(folder_ / "killed").empty();
    const pid_t child = start(arguments("killed", resume ? "--resume" : ""));
    // Some steps on, and then at any moment, also while a checkpoint is written.
    const std::int64_t until = lines_of("killed") + 1 + random.below(30, 2 * attempt);
    int status = 0;
    while (!ended && lines_of("killed") < until) {
      ended = waitpid(child, &status, WNOHANG) == child;
    }
    if (!ended) {
      std::this_thread::sleep_for(std::chrono::microseconds(random.below(5000, 2 * attempt + 1)));
      kill(child, SIGKILL);
      status = wait_for(child);
      ended = WIFEXITED(status);
    }
    kills += ended ? 0 : 1;
    ASSERT_TRUE(!ended || WEXITSTATUS(status) == 0) << status;
  }
  EXPECT_GE(kills, 2U);
  EXPECT_EQ(metrics("killed"), metrics("whole"));
  EXPECT_EQ(read_file(find_checkpoint(folder_ / "killed") / "model.safetensors"),
            read_file(find_checkpoint(folder_ / "whole") / "model.safetensors"));
}

TEST_F(Training, SavesAndReturns130WhenInterrupted) {
  for (const auto& [name, signal] :
       {std::pair{"int", SIGINT}, {"term", SIGTERM}, {"hangup", SIGHUP}}) {
    const pid_t child =
        start(arguments(name, "--train.tokens 12800000 --train.checkpoint_every 0"));
    while (lines_of(name) < 3) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    kill(child, signal);
    const int status = wait_for(child);
    ASSERT_TRUE(WIFEXITED(status)) << name;
    EXPECT_EQ(WEXITSTATUS(status), 130) << name;
    ASSERT_EQ(list_checkpoints(folder_ / name).size(), 1U) << name;
    EXPECT_EQ(find_checkpoint(folder_ / name).filename().string(),
              fmt::format("step-{:08}", metrics(name).back()["step"].get<int>()));
  }
}

TEST_F(Training, GoesOnAfterAHangupThatItWasToldToIgnore) {
  std::signal(SIGHUP, SIG_IGN);  // as nohup does
  const pid_t child = start(arguments("a"));
  std::signal(SIGHUP, SIG_DFL);
  while (lines_of("a") < 3) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  kill(child, SIGHUP);
  EXPECT_EQ(wait_for(child), 0);
  EXPECT_EQ(metrics("a").back()["step"], 100);
}

TEST_F(Training, EndsInOrderHoweverOftenItIsTerminated) {
  // mpirun terminates all ranks when one has ended, also those that are about to.
  const pid_t child = start(arguments("term", "--train.tokens 12800000"));
  while (lines_of("term") < 3) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  int status = 0;
  while (waitpid(child, &status, WNOHANG) == 0) {
    kill(child, SIGTERM);
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  ASSERT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 130);
  EXPECT_FALSE(list_checkpoints(folder_ / "term").empty());
}

TEST_F(Training, StopsInOrderAtWhateverMomentItIsInterrupted) {
  // A handler that runs on a computing thread would write into oneDNN's workspace.
  for (int attempt = 0; attempt < 10; ++attempt) {
    const std::string name = fmt::format("a{}", attempt);
    const pid_t child = start(arguments(name, "--train.tokens 12800000 --model.width 64"));
    while (lines_of(name) < 1 + attempt) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    kill(child, SIGINT);
    const int status = wait_for(child);
    ASSERT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
    EXPECT_EQ(WEXITSTATUS(status), 130);
    EXPECT_FALSE(list_checkpoints(folder_ / name).empty());
  }
}

TEST_F(Training, GoesOnWhereNobodyCanBeTold) {
  EXPECT_EQ(run(arguments("a", "2>/dev/full 1>/dev/full --train.tokens 1280")).status, 0);
  EXPECT_EQ(list_checkpoints(folder_ / "a").size(), 1U);
}

TEST_F(Training, KeepsTheLastCheckpointOnAFullDisk) {
  ASSERT_EQ(run(arguments("whole")).status, 0);
  fs::create_directories(folder_ / "full");
  const std::string said = in_a_child([&]() -> std::string {
    constexpr std::size_t kRoom = 140 << 10;  // for one checkpoint and a part of the second
    if (!mount_small(folder_ / "full", kRoom)) {
      return "no mount";
    }
    const Ended full = run(arguments("full"));
    const auto checkpoints = list_checkpoints(folder_ / "full");
    resize_mounted(folder_ / "full", 10 << 20);
    const Ended after = run(arguments("full", "--resume"));
    return fmt::format("{} {} | {} | {} {}", full.status, full.output, checkpoints.size(),
                       after.status, metrics("full") == metrics("whole") ? "same" : "other");
  });
  if (said == "no mount") {
    GTEST_SKIP() << "a small file system cannot be mounted here";
  }
  EXPECT_THAT(said, AllOf(testing::StartsWith("1 "), HasSubstr("step-00000020"),
                          HasSubstr("No space left on device; free some space"),
                          testing::EndsWith(" | 1 | 0 same")));
}

TEST_F(Training, SaysHowToBeginAgainWithoutACheckpoint) {
  // Files can grow to a few KiB, as on a disk that is almost full.
  const Ended full =
      run(arguments("a run", "--train.checkpoint_every 0"), "trap '' XFSZ; ulimit -f 8;");
  EXPECT_EQ(full.status, 1);
  EXPECT_THAT(full.output, AllOf(HasSubstr("step 1/100"), HasSubstr("free some space"),
                                 HasSubstr("--resume auto")));
  const std::string folder = (folder_ / "a run").string();
  const Ended resumed = run("train --resume --out '" + folder + "'");
  EXPECT_EQ(resumed.status, 1);
  const std::string remedy =
      "train --resume auto --config '" + folder + "/config.toml' --out '" + folder + "'";
  EXPECT_THAT(resumed.output, AllOf(HasSubstr("nothing to resume yet"),
                                    HasSubstr("begin again with: carope " + remedy)));
  const Ended again = run(remedy);
  EXPECT_EQ(again.status, 0) << again.output;
  EXPECT_EQ(metrics("a run").size(), 104U);
  EXPECT_THAT(run("train --resume --out '" + (folder_ / "b").string() + "'").output,
              HasSubstr("nothing to resume yet; check the folder"));
}

TEST_F(Training, SaysHowToGoOnWithoutADamagedCheckpoint) {
  ASSERT_EQ(run(arguments("a", "--train.tokens 2560")).status, 0);  // 20 steps
  const fs::path checkpoints = folder_ / "a" / "checkpoints";
  const std::string resume = "train --resume --out ";
  const auto refusal = [&](const char* step, const char* file, const std::string& command) {
    const fs::path damaged = checkpoints / step / file;
    const std::string whole = read_file(damaged);
    fs::resize_file(damaged, whole.size() - 3);
    const Ended ended = run(command + "'" + (folder_ / "a").string() + "'");
    EXPECT_EQ(ended.status, 1) << file;
    write_bytes(damaged, whole);
    return ended.output;
  };
  const std::string newest = (checkpoints / "step-00000020").string();
  for (const char* file :
       {"model.safetensors", "optimizer.safetensors", "state.json", "config.toml"}) {
    EXPECT_THAT(refusal("step-00000020", file, resume),
                AllOf(HasSubstr(file), HasSubstr("delete " + newest +
                                                 ", and the run goes on from "
                                                 "step-00000010, the checkpoint before it")));
  }
  const std::string older = (checkpoints / "step-00000010").string();
  EXPECT_THAT(refusal("step-00000020", "model.safetensors", "eval "),
              HasSubstr(older + ", the checkpoint before it, can be named instead"));
  EXPECT_EQ(run("eval '" + older + "'").status, 0);
  fs::remove_all(newest);
  EXPECT_THAT(refusal("step-00000010", "model.safetensors", resume),
              AllOf(HasSubstr("begin again in another folder"), HasSubstr("no older checkpoint")));
  EXPECT_EQ(run(resume + "'" + (folder_ / "a").string() + "'").status, 0);
  EXPECT_EQ(list_checkpoints(folder_ / "a").size(), 2U);
}

TEST_F(Training, SaysWhichFileWasCutWhileItWasRead) {
  const std::string cut_when_it_runs = fmt::format(
      "(until [ -s '{}' ]; do sleep 0.05; done; for shard in '{}'/*train*; do : > \"$shard\"; "
      "done) &",
      (folder_ / "a" / "metrics.jsonl").string(), (folder_ / "data").string());
  const Ended cut = run(arguments("a", "--train.tokens 12800000"), cut_when_it_runs);
  EXPECT_EQ(cut.status, 1);
  EXPECT_THAT(cut.output, AllOf(HasSubstr((folder_ / "data").string() + "/"),
                                HasSubstr("became shorter while it was read")));
}

TEST_F(Training, RefusesACheckpointAsTheFolderOfARun) {
  ASSERT_EQ(run(arguments("a", "--train.tokens 1280")).status, 0);
  const fs::path checkpoint = find_checkpoint(folder_ / "a");
  const auto refusal = [&](const fs::path& folder, const std::string& more) {
    const Ended ended = run("train --out '" + folder.string() + "' " +
                            small_training(folder_ / "data") + " --train.tokens 1280 " + more);
    EXPECT_EQ(ended.status, 1) << more;
    return ended.output;
  };
  for (const char* more : {"", "--resume", "--resume auto"}) {
    EXPECT_THAT(refusal(checkpoint / "", more),
                AllOf(HasSubstr("is a checkpoint"),
                      HasSubstr("the folder of its run, " + (folder_ / "a").string() + "\n")));
  }
  fs::rename(checkpoint, folder_ / "kept");
  EXPECT_THAT(refusal(folder_ / "kept", "--resume"), HasSubstr("name another folder"));
  EXPECT_FALSE(fs::exists(folder_ / "kept" / "metrics.jsonl"));
}

TEST_F(Training, RefusesAFolderThatAnotherProcessTrainsIn) {
  const pid_t child = start(arguments("a", "--train.tokens 12800000"));
  while (list_checkpoints(folder_ / "a").empty()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  const Ended second = run(arguments("a", "--train.tokens 12800000 --resume"));
  kill(child, SIGKILL);
  wait_for(child);
  EXPECT_EQ(second.status, 1);
  EXPECT_THAT(second.output, HasSubstr("is being written by another process"));
}

TEST_F(Training, StopsWhenTheLossExplodes) {
  const Ended ended = run(arguments("a", "--train.learning_rate 1e6 --optimizer.clip 0"));
  EXPECT_EQ(ended.status, 1);
  EXPECT_THAT(ended.output, AllOf(HasSubstr("the loss is"), HasSubstr("Lower train.learning_rate"),
                                  HasSubstr("in another folder")));
  EXPECT_EQ(list_checkpoints(folder_ / "a" / "failed").size(), 1U);
  EXPECT_THAT(ended.output, HasSubstr(find_checkpoint(folder_ / "a" / "failed").string()));
  // It is none to go on from, and pushes out none.
  EXPECT_TRUE(list_checkpoints(folder_ / "a").empty());
}

TEST_F(Training, GoesOnWithTheSameDataOnly) {
  const fs::path data = folder_ / "data";
  Manifest manifest = manifest_of(data);
  manifest.save(data);
  ASSERT_EQ(run(arguments("a", "--train.tokens 1280")).status, 0);
  const std::string resume = "train --resume --out '" + (folder_ / "a").string() + "'";

  // It may lie elsewhere.
  const fs::path moved = folder_ / "moved";
  fs::rename(data, moved);
  EXPECT_THAT(run(resume).output, AllOf(HasSubstr("does not exist"), HasSubstr("--data.path")));
  const std::string elsewhere = resume + " --data.path '" + moved.string() + "'";
  const Ended found = run(elsewhere);
  EXPECT_EQ(found.status, 0) << found.output;

  const std::string made_of = read_file(moved / "manifest.json");
  write_file(moved / "manifest.json", made_of + "\n");
  EXPECT_THAT(run(elsewhere).output, HasSubstr("is not what"));
  fs::rename(moved, data);
  const Ended other = run(resume);
  EXPECT_EQ(other.status, 1);
  EXPECT_THAT(other.output, AllOf(HasSubstr("is not what"), HasSubstr("manifest.json")));

  // Other shards than those that it was prepared as are other data.
  manifest.save(data);
  const fs::path added = data / "t_train_000008.bin";
  fs::copy_file(data / manifest.shards.front().file, added);
  EXPECT_THAT(run(resume).output, AllOf(HasSubstr(added.string() + " is not among the shards")));
  fs::remove(added);
  const fs::path changed = data / manifest.shards.front().file;
  const std::string prepared = read_file(changed);
  write_bytes(changed, shard_bytes(std::vector<std::uint16_t>(900, 3)));
  EXPECT_THAT(run(resume).output, HasSubstr(changed.string() + " has 900 tokens, where"));
  write_bytes(changed, prepared);
  EXPECT_EQ(run(resume).status, 0);

  manifest.complete = false;
  manifest.save(data);
  EXPECT_THAT(run(arguments("b")).output, HasSubstr("is not complete"));
  manifest.complete = true;
  manifest.shards.push_back({.file = "t_train_000009.bin"});
  manifest.save(data);
  EXPECT_THAT(run(arguments("b")).output, HasSubstr("t_train_000009.bin is missing"));
}

TEST_F(Training, FailsWhenTheLastUpdateBreaksTheModel) {
  const Ended ended =
      run(arguments("a", "--train.tokens 128 --train.learning_rate 1e30 --train.warmup_steps 0"));
  EXPECT_EQ(ended.status, 1) << ended.output;
  EXPECT_THAT(ended.output, AllOf(HasSubstr("step 1: the validation loss is"),
                                  HasSubstr("Lower train.learning_rate")));
  EXPECT_EQ(list_checkpoints(folder_ / "a" / "failed").size(), 1U);
  EXPECT_TRUE(list_checkpoints(folder_ / "a").empty());
  const Ended scored = run("eval '" + (folder_ / "a" / "failed").string() + "'");
  EXPECT_EQ(scored.status, 1) << scored.output;
  EXPECT_THAT(scored.output, HasSubstr("nothing was scored: the loss is not finite"));
}

TEST_F(Training, WarnsWhereItValidatesOnWhatItTrainsOn) {
  const std::string shard = (folder_ / "data" / "t_train_000001.bin").string();
  const Ended one = run(arguments("a", "--train.tokens 1280 --data.path '" + shard + "'"));
  EXPECT_EQ(one.status, 0) << one.output;
  EXPECT_THAT(one.output, HasSubstr("warning: data.path = " + shard + " is one shard"));
  EXPECT_THAT(run(arguments("b", "--train.tokens 1280")).output,
              testing::Not(HasSubstr("warning")));
}

TEST_F(Training, RefusesWhatItCannotDo) {
  EXPECT_THAT(run("train --out '" + (folder_ / "a").string() + "'").output,
              HasSubstr("data.path is not set"));
  EXPECT_THAT(run(arguments("a", "--resume")).output, HasSubstr("no complete checkpoint"));
  ASSERT_EQ(run(arguments("a", "--train.tokens 1280")).status, 0);
  const Ended again = run(arguments("a"));
  EXPECT_EQ(again.status, 1);
  EXPECT_THAT(again.output, HasSubstr("give --resume"));
  const Ended changed = run(arguments("a", "--train.tokens 1280 --train.seed 2 --resume"));
  EXPECT_EQ(changed.status, 1);
  EXPECT_THAT(changed.output, HasSubstr("train.seed = 2 is not what"));
  const auto otherwise = [&](const std::string& setting) {
    return run("train --resume --out '" + (folder_ / "a").string() + "' " + setting).output;
  };
  EXPECT_THAT(otherwise("--optimizer.clip 1 --train.learning_rate 0.01"),
              Not(HasSubstr("is not what")));
  // What would be refused in another way where it is given for the first time.
  EXPECT_THAT(otherwise("--position.encoding rope"),
              HasSubstr("position.encoding = rope is not what"));
  EXPECT_THAT(otherwise("--position.encoding learnable --position.positions 5"),
              HasSubstr("position.encoding = learnable is not what"));
  EXPECT_THAT(otherwise("--model.width 17"), HasSubstr("model.width = 17 is not what"));
  EXPECT_THAT(otherwise("--position.bia false"), HasSubstr("did you mean 'bias'?"));
  EXPECT_THAT(otherwise("--train.token 5"), HasSubstr("did you mean 'tokens'?"));
  EXPECT_THAT(run(arguments("b", "--model.vocabulary 40")).output,
              AllOf(HasSubstr("t_train_000001.bin"), HasSubstr("vocabulary")));
  EXPECT_THAT(run(arguments("b", "--train.step 5")).output, HasSubstr("train.step = 5"));
  EXPECT_THAT(run(arguments("b", "--config tiny-short")).output,
              AllOf(HasSubstr("no configuration of that name"), HasSubstr("short-tiny")));
  EXPECT_THAT(run(arguments("b", "stray")).output, HasSubstr("'stray' is not an option"));
}

class TrainingOnGpu : public Training {
 protected:
  void SetUp() override {
    if (!has_gpu()) {
      GTEST_SKIP() << "no GPU is present";
    }
  }

  /// What the run's newest checkpoint keeps, but for the time it took.
  std::vector<std::string> kept(const std::string& run) const {
    const fs::path checkpoint = find_checkpoint(folder_ / run);
    return {checkpoint.filename().string(), read_file(checkpoint / "model.safetensors"),
            read_file(checkpoint / "optimizer.safetensors")};
  }
};

TEST_F(TrainingOnGpu, GoesOnBitForBitAfterItWasStopped) {
  constexpr std::int64_t kStopAfter = 20;  // of 40 steps
  // Whole tiles, as the paper's models have them, and two micro-batches a step.
  const std::string settings =
      "--device cuda --deterministic --model.heads 4 --model.width 256 --model.length 128 "
      "--model.vocabulary 1088 --train.micro_batch 2 --train.batch_tokens 512 "
      "--train.tokens 20480 --train.learning_rate 1e-3 --train.checkpoint_every 8 ";
  const Ended whole = run(arguments("whole", settings));
  ASSERT_EQ(whole.status, 0) << whole.output;
  for (const auto& [name, signal] : {std::pair{"interrupted", SIGINT}, {"killed", SIGKILL}}) {
    const pid_t child = start(arguments(name, settings));
    int status = 0;
    while (lines_of(name) < kStopAfter) {
      ASSERT_EQ(waitpid(child, &status, WNOHANG), 0) << name << ": ended before it was stopped";
    }
    kill(child, signal);
    status = wait_for(child);
    ASSERT_TRUE(signal == SIGINT ? WIFEXITED(status) && WEXITSTATUS(status) == 130
                                 : WIFSIGNALED(status))
        << name << ": " << status;
    const Ended resumed = run(arguments(name, settings + "--resume"));
    ASSERT_EQ(resumed.status, 0) << name << ": " << resumed.output;
    EXPECT_EQ(metrics(name), metrics("whole")) << name;
    EXPECT_TRUE(kept(name) == kept("whole")) << name;
  }
}

TEST_F(TrainingOnGpu, SaysWhatWouldFit) {
  // Of a model with many layers recomputing takes two thirds of the memory.
  const GptConfig model{.layers = 12, .heads = 1, .width = 64, .vocabulary = 64, .length = 128};
  constexpr std::int64_t kRows = 64;
  const Gpt gpt(model, {DeviceKind::kCuda, 0}, DType::kBF16);
  const auto bytes = [&](Purpose purpose) {
    return static_cast<double>(
        gpt.plan({.batch = kRows, .length = model.length, .purpose = purpose}).bytes());
  };
  ASSERT_LT(bytes(Purpose::kRecomputing), 0.75 * bytes(Purpose::kTraining));
  const auto memory = static_cast<double>(cuda::devices().front().memory_bytes);
  const auto rows = static_cast<std::int64_t>(1.2 * memory / bytes(Purpose::kTraining)) * kRows;
  const auto train = [&](std::int64_t micro_batch, const std::string& more) {
    return run(arguments(
        "a", fmt::format("--device cuda --model.layers {} --model.heads {} --model.width {} "
                         "--model.vocabulary {} --model.length {} --train.micro_batch {} "
                         "--train.batch_tokens {} {}",
                         model.layers, model.heads, model.width, model.vocabulary, model.length,
                         micro_batch, micro_batch * model.length, more)));
  };
  const Ended large = train(rows, "");
  EXPECT_EQ(large.status, 1);
  EXPECT_THAT(
      large.output,
      AllOf(HasSubstr(fmt::format("train.micro_batch = {} rows of 128 tokens do not fit", rows)),
            HasSubstr(". --recompute would fit")));
  const Ended huge = train(8 * rows, "");
  EXPECT_EQ(huge.status, 1);
  EXPECT_THAT(huge.output,
              HasSubstr(fmt::format(". --train.micro_batch {} --recompute would fit", rows)));

  const std::vector<std::uint16_t> tokens(static_cast<std::size_t>(rows * model.length + 1), 7);
  const fs::path data = folder_ / "large";
  fs::create_directory(data);
  for (const char* shard : {"t_train_000001.bin", "t_val_000000.bin"}) {
    write_bytes(data / shard, shard_bytes(tokens));
  }
  const Ended fits = train(rows, fmt::format("--recompute --data.path '{}' --train.tokens {}",
                                             data.string(), rows * model.length));
  EXPECT_EQ(fits.status, 0) << fits.output;
}

}  // namespace
}  // namespace carope::test
