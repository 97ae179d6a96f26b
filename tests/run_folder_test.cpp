// What a run's folder keeps, whatever else is in it, around it, or wrong with it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "core/file.h"
#include "support/deep_json.h"
#include "support/folder.h"
#include "support/program.h"
#include "support/shard_files.h"
#include "support/training.h"
#include "train/checkpoint.h"

namespace carope::test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

/// A run of twenty steps, with checkpoints at steps 10 and 20.
class RunFolder : public testing::Test {
 protected:
  RunFolder() { write_training_data(folder_ / "data"); }

  std::string train(const std::string& more = "") const {
    return "train --threads 1 --out '" + run_folder().string() + "' " +
           small_training(folder_ / "data") + " --train.tokens 2560 " + more;
  }
  std::string resume() const { return "train --resume --out '" + run_folder().string() + "'"; }

  fs::path run_folder() const { return folder_ / "a"; }
  fs::path checkpoint(const std::string& name) const { return run_folder() / "checkpoints" / name; }
  std::vector<std::string> checkpoints() const {
    std::vector<std::string> names;
    for (const fs::path& path : list_checkpoints(run_folder())) {
      names.push_back(path.filename().string());
    }
    return names;
  }

  TemporaryFolder folder_;
};

TEST_F(RunFolder, KeepsCopiesUnderOtherNames) {
  ASSERT_EQ(run(train()).status, 0);
  const std::vector<std::string> copies{"step-best", "step-00000010-best", "step-", "step--1"};
  for (const std::string& copy : copies) {
    fs::copy(checkpoint("step-00000010"), checkpoint(copy));
  }
  EXPECT_THAT(checkpoints(), ElementsAre("step-00000010", "step-00000020"));
  const Ended more = run(train("--resume --train.tokens 2560"));
  EXPECT_EQ(more.status, 0) << more.output;
  for (const std::string& copy : copies) {
    EXPECT_TRUE(fs::exists(checkpoint(copy) / "model.safetensors")) << copy;
  }
}

TEST_F(RunFolder, OrdersCheckpointsByTheirSteps) {
  for (const char* name : {"step-100000000", "step-99999999", "step-00000007"}) {
    fs::create_directories(checkpoint(name));
    write_bytes(checkpoint(name) / "complete", "");
  }
  EXPECT_THAT(checkpoints(), ElementsAre("step-00000007", "step-99999999", "step-100000000"));
}

TEST_F(RunFolder, RemovesWhatWasLeftHalfWritten) {
  for (const char* name : {"step-00000005", "step-00000015", "step-00000099"}) {
    fs::create_directories(checkpoint(name));
    write_bytes(checkpoint(name) / "model.safetensors", "half");
  }
  ASSERT_EQ(run(train()).status, 0);
  EXPECT_FALSE(fs::exists(checkpoint("step-00000005")));
  EXPECT_FALSE(fs::exists(checkpoint("step-00000015")));
  EXPECT_TRUE(fs::exists(checkpoint("step-00000099")));  // it may be what somebody looks for
  EXPECT_THAT(checkpoints(), ElementsAre("step-00000010", "step-00000020"));
}

/// A disk that is not mounted, say: to begin anew would lose the metrics of all steps so far.
TEST_F(RunFolder, DoesNotTakeCheckpointsThatCannotBeReadForNone) {
  ASSERT_EQ(run(train()).status, 0);
  const std::string metrics = read_file(run_folder() / "metrics.jsonl");
  fs::rename(run_folder() / "checkpoints", folder_ / "elsewhere");
  fs::create_symlink(folder_ / "not mounted", run_folder() / "checkpoints");
  for (const std::string& command : {train("--resume auto"), train(), resume()}) {
    const Ended ended = run(command);
    EXPECT_EQ(ended.status, 1);
    EXPECT_THAT(ended.output, AllOf(HasSubstr("/checkpoints cannot be read: "),
                                    HasSubstr("make the folder readable")));
  }
  EXPECT_EQ(read_file(run_folder() / "metrics.jsonl"), metrics);
}

TEST_F(RunFolder, KeepsTheStepsBeforeDataThatCannotBeRead) {
  for (const auto& entry : fs::directory_iterator(folder_ / "data")) {
    if (entry.path().string().find("_val_") != std::string::npos) {
      write_bytes(entry.path(), shard_bytes(std::vector<std::uint16_t>(700, 65535)));
    }
  }
  const Ended ended = run(train("--train.validate_every 20 --train.checkpoint_every 0"));
  EXPECT_EQ(ended.status, 1);
  EXPECT_THAT(ended.output, HasSubstr("65535"));
  EXPECT_THAT(checkpoints(), ElementsAre("step-00000020"));
}

TEST_F(RunFolder, RefusesACheckpointOfAnotherStep) {
  ASSERT_EQ(run(train()).status, 0);
  const fs::path state = checkpoint("step-00000020") / "state.json";
  for (const char* step : {"21", "-7"}) {
    write_bytes(
        state,
        fmt::format(R"({{"step": {}, "optimizer_steps": 20, "tokens": 1, "seconds": 1.0}})", step));
    const Ended ended = run(resume());
    EXPECT_EQ(ended.status, 1);
    EXPECT_THAT(ended.output,
                AllOf(HasSubstr(fmt::format("step-00000020 is of step {} by its state.json", step)),
                      HasSubstr("the run goes on from step-00000010")));
  }
}

TEST_F(RunFolder, RefusesAFileThatNestsTooDeep) {
  manifest_of(folder_ / "data").save(folder_ / "data");
  ASSERT_EQ(run(train("--train.tokens 1280")).status, 0);
  const fs::path file = run_folder() / "run.json";
  write_bytes(file, fmt::format(R"({{"data_manifest_sha256": {}}})", deep_json()));
  const Ended refused = run(resume());
  EXPECT_EQ(refused.status, 1);
  EXPECT_THAT(refused.output, AllOf(HasSubstr(file.string()), HasSubstr("more than 64 deep")));
}

TEST_F(RunFolder, GoesOnWithoutLinesThatAreNoMetrics) {
  ASSERT_EQ(run(train("--train.tokens 1280")).status, 0);
  const fs::path file = run_folder() / "metrics.jsonl";
  const std::string metrics = read_file(file);
  write_bytes(file, metrics + "{\"step\":\"x\"}\n{\"step\":null}\n[1]\n{\"st");
  const Ended ended = run(resume());
  EXPECT_EQ(ended.status, 0) << ended.output;
  EXPECT_EQ(read_file(file), metrics);
}

TEST_F(RunFolder, CanBeNamedByAnyBytesOfUtf8) {
  const fs::path data = folder_ / "d\x7f\"\\ä";
  fs::rename(folder_ / "data", data);
  const Ended begun = run("train --threads 1 --out '" + run_folder().string() + "' " +
                          small_training(data) + " --train.tokens 1280");
  ASSERT_EQ(begun.status, 0) << begun.output;
  const Ended again = run(resume());
  EXPECT_EQ(again.status, 0) << again.output;
}

TEST_F(RunFolder, FindsItsDataFromAnyFolder) {
  const std::string there = "cd '" + folder_.path().string() + "' &&";
  const Ended begun =
      run("train --out a " + small_training("data") + " --train.tokens 1280", there);
  ASSERT_EQ(begun.status, 0) << begun.output;
  const Ended again = run(resume());
  EXPECT_EQ(again.status, 0) << again.output;
}

TEST_F(RunFolder, RefusesDataWhoseNameCannotBeKept) {
  const fs::path data = folder_ / "d\xff";
  fs::rename(folder_ / "data", data);
  const Ended ended = run("train --out '" + run_folder().string() + "' " + small_training(data));
  EXPECT_EQ(ended.status, 1);
  EXPECT_THAT(ended.output, HasSubstr("is not UTF-8, in which settings are kept"));
}

TEST_F(RunFolder, IsScoredWhateverItsName) {
  ASSERT_EQ(run(train()).status, 0);
  const fs::path odd = folder_ / "a\xff";
  fs::rename(run_folder(), odd);
  const fs::path scores = folder_ / "scores.json";
  const Ended ended =
      run("eval '" + odd.string() + "' --lengths 16 --json '" + scores.string() + "'");
  EXPECT_EQ(ended.status, 0) << ended.output;
  EXPECT_THAT(read_file(scores), HasSubstr("step-00000020"));
}

/// Otherwise what is told would go to the first file that the program opens.
TEST_F(RunFolder, HasOnlyItsOwnLinesWhereThereAreNoStandardStreams) {
  int status = -1;
  waitpid(start(train("<&- >&- 2>&-")), &status, 0);
  ASSERT_EQ(status, 0);
  const std::string metrics = read_file(run_folder() / "metrics.jsonl");
  EXPECT_EQ(std::count(metrics.begin(), metrics.end(), '\n'),
            std::count(metrics.begin(), metrics.end(), '{'));
  EXPECT_THAT(checkpoints(), ElementsAre("step-00000010", "step-00000020"));
}

TEST_F(RunFolder, NeedsAName) {
  const Ended ended = run("train --out '' " + small_training(folder_ / "data"));
  EXPECT_EQ(ended.status, 1);
  EXPECT_THAT(ended.output, HasSubstr("give --out FOLDER"));
}

}  // namespace
}  // namespace carope::test
