// The program as a user runs it: what it prints, and how it ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dist/mpi.h"
#include "support/folder.h"
#include "support/program.h"
#include "support/shard_files.h"
#include "support/training.h"

namespace carope::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(Cli, SaysWhatItCanDo) {
  const Ended help = run("--help");
  EXPECT_EQ(help.status, 0);
  EXPECT_THAT(help.output, AllOf(HasSubstr("data"), HasSubstr("devices"), HasSubstr("encodings"),
                                 HasSubstr("reproduce"), HasSubstr("tokenizer")));
  EXPECT_EQ(run("--version").status, 0);
}

TEST(Cli, RefusesWhatItDoesNotKnow) {
  EXPECT_NE(run("").status, 0);
  const Ended unknown = run("trian");
  EXPECT_NE(unknown.status, 0);
  EXPECT_THAT(unknown.output, HasSubstr("unknown command 'trian'"));
  EXPECT_THAT(run("devcies").output, HasSubstr("did you mean 'devices'"));
}

TEST(Cli, SaysWhatIsTheLeastThatIsPossible) {
  for (const char* command :
       {"eval nowhere --timeout 0", "train --out nowhere --timeout 0", "reproduce --timeout 0"}) {
    const Ended refused = run(command);
    EXPECT_NE(refused.status, 0) << command;
    EXPECT_THAT(refused.output, HasSubstr("--timeout: 0 is not possible; give 1 or more\n"));
  }
  const Ended refused = run("data inspect nowhere --documents -1");
  EXPECT_NE(refused.status, 0);
  EXPECT_THAT(refused.output, HasSubstr("--documents: -1 is not possible; give 0 or more\n"));
}

TEST(Cli, FailsWhereItsOutputIsLost) {
  EXPECT_EQ(run("encodings >/dev/null").status, 0);
  for (const char* command : {"encodings", "config show", "--help", "eval --help", "--version"}) {
    const Ended lost = run(std::string(command) + " 2>&1 >/dev/full; exit");
    EXPECT_EQ(lost.status, 1) << command;
    EXPECT_EQ(lost.output,
              "carope: standard output could not be written: No space left on device; what was to "
              "be seen is not complete\n")
        << command;
  }
}

TEST(Cli, ListsEncodingsForAModel) {
  const Ended listed = run("encodings --config '" CAROPE_SOURCE_DIR "/configs/gpt-small.toml'");
  EXPECT_EQ(listed.status, 0);
  EXPECT_THAT(listed.output,
              AllOf(HasSubstr("12 layers, 12 heads, width 768, length 512"), HasSubstr("carope"),
                    HasSubstr("110736"),    // 12 layers of 12 x 768 weights and 12 biases
                    HasSubstr("393216")));  // 512 learnable positions
  const Ended missing = run("encodings --config nowhere.toml");
  EXPECT_EQ(missing.status, 1);
  EXPECT_THAT(missing.output, HasSubstr("nowhere.toml"));
}

TEST(Cli, ListsDevices) {
  const Ended listed = run("devices");
  EXPECT_EQ(listed.status, 0);
  EXPECT_THAT(listed.output, AllOf(HasSubstr("cpu: "), HasSubstr("cuda")));
}

TEST(Cli, SaysWhyItCannotComputeThere) {
  const TemporaryFolder folder;
  write_training_data(folder / "data");
  const std::string train =
      "train --out '" + (folder / "run").string() + "' " + small_training(folder / "data");
  const auto answer = [&](const std::string& options) {
    const Ended ended = run(train + " " + options);
    EXPECT_EQ(ended.status, 1) << options;
    return ended.output;
  };
  EXPECT_THAT(answer("--device tpu"), HasSubstr("give auto, cpu, cuda or cuda:N"));
  EXPECT_THAT(answer("--device cuda:x"), HasSubstr("give auto, cpu, cuda or cuda:N"));
  EXPECT_THAT(answer("--device cpu --precision bf16"), HasSubstr("needs a GPU"));
  EXPECT_THAT(answer("--device cuda:99"), HasSubstr("cuda:99 was asked for"));
}

TEST(Cli, InspectsAShard) {
  const TemporaryFolder folder;
  const auto path =
      write_bytes(folder / "x_val_000000.bin",
                  shard_bytes({50256, 11, 12, 50256, 50256, 13, 14, 15, 16, 17, 50256, 18, 19}));
  const Ended shown = run("data inspect '" + path.string() + "' --documents 3");
  EXPECT_EQ(shown.status, 0);
  EXPECT_THAT(shown.output,
              AllOf(HasSubstr("magic 20240520, version 1, 13 tokens"), HasSubstr("id: 50256"),
                    HasSubstr("documents: 4\n"), HasSubstr("mean 3.2, median 3, longest 6"),
                    HasSubstr(" 2 - 3          2 " + std::string(50, '#') + "\n"),
                    HasSubstr(" 4 - 7          1 " + std::string(25, '#') + "\n"),
                    HasSubstr("from token 0:\n  50256 11 12\n"),
                    HasSubstr("from token 4:\n  50256 13 14 15 16 17\n"),
                    testing::Not(HasSubstr("from token 10"))));
  write_bytes(path, shard_bytes({1, 2, 3}));
  EXPECT_THAT(run("data inspect '" + path.string() + "'").output,
              AllOf(HasSubstr("documents: unknown"), HasSubstr("from token 0:\n  1 2 3\n")));
}

TEST(Cli, InspectsAShardWithTheTokenizerBesideIt) {
  const TemporaryFolder folder;
  const auto text = write_bytes(folder / "a.jsonl",
                                "{\"text\": \"The first\\ntext.\"}\n{\"text\": \"A second.\"}\n");
  const std::string small = CAROPE_SOURCE_DIR "/tests/data/small";
  ASSERT_EQ(run("data prepare --tokenizer '" + small + "' --out '" + (folder / "out").string() +
                "' --val '" + text.string() + "' '" +
                write_bytes(folder / "b.txt", "Something else.").string() + "'")
                .status,
            0);
  const std::string shard = (folder / "out" / "out_val_000000.bin").string();
  const Ended shown = run("data inspect '" + shard + "'");
  EXPECT_EQ(shown.status, 0);
  EXPECT_THAT(shown.output, AllOf(HasSubstr("end-of-text id: 1023"), HasSubstr("documents: 2\n"),
                                  HasSubstr("<|endoftext|>The first\\ntext.\n"),
                                  HasSubstr("<|endoftext|>A second.\n")));
  // A tokenizer that cannot have made the shard is no help, and no reason to fail.
  write_bytes(shard, shard_bytes({1023, 5, 2000}));
  const Ended other = run("data inspect '" + shard + "'");
  EXPECT_EQ(other.status, 0);
  EXPECT_THAT(other.output, AllOf(HasSubstr("has only 1024 tokens and did not make this shard"),
                                  HasSubstr("1023 5 2000\n")));
}

TEST(Cli, InspectsAFolder) {
  const TemporaryFolder folder;
  const std::string command = "data inspect '" + folder.path().string() + "'";
  const Ended empty = run(command);
  EXPECT_EQ(empty.status, 1);
  EXPECT_THAT(empty.output, AllOf(HasSubstr("it has nothing"), HasSubstr("name another folder")));
  write_bytes(folder / "x_val_000000.bin", shard_bytes({1, 2, 3}));
  write_bytes(folder / "x_train_000001.bin", shard_bytes({1, 2, 3, 4}));
  EXPECT_THAT(run(command).output, AllOf(HasSubstr("x_train_000001.bin  train       4\n"),
                                         HasSubstr("x_val_000000.bin      val       3\n"),
                                         HasSubstr("2 shards, 7 tokens\n")));
  write_bytes(folder / "x_train_000002.bin", "");
  const Ended bad = run(command);
  EXPECT_EQ(bad.status, 1);
  EXPECT_THAT(bad.output, HasSubstr("x_train_000002.bin is empty"));
}

TEST(Cli, RefusesToTrainWhatItCannotShareWithOtherProcesses) {
  for (const char* command : {"reproduce --device cpu", "train --device cpu --out nowhere"}) {
    const Ended launched = run(command, "RANK=0 WORLD_SIZE=2");
    EXPECT_EQ(launched.status, 1);
    EXPECT_THAT(launched.output,
                mpi::compiled() ? HasSubstr("start them by mpirun -np 2")
                                : HasSubstr("2 processes were launched, but this program was"));
    EXPECT_THAT(run(command, "RANK=2 WORLD_SIZE=2").output, HasSubstr("do not fit together"));
    EXPECT_THAT(run(command, "RANK=x WORLD_SIZE=2").output, HasSubstr("RANK = 'x'"));
  }
  EXPECT_THAT(run("train --out nowhere --threads -3").output, HasSubstr("threads = -3"));
}

TEST(Cli, LetsThreadsWaitWithoutSpinningUnlessToldOtherwise) {
  EXPECT_THAT(run("devices", "env -u OMP_WAIT_POLICY OMP_DISPLAY_ENV=verbose").output,
              HasSubstr("GOMP_SPINCOUNT = '3000'"));
  EXPECT_THAT(run("devices", "OMP_WAIT_POLICY=active OMP_DISPLAY_ENV=verbose").output,
              AllOf(HasSubstr("OMP_WAIT_POLICY = 'ACTIVE'"),
                    testing::Not(HasSubstr("GOMP_SPINCOUNT = '3000'"))));
}

}  // namespace
}  // namespace carope::test
