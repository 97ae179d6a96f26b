// The program as a user runs it: what it prints, and how it ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "support/program.h"

namespace carope::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(Cli, SaysWhatItCanDo) {
  const Ended help = run("--help");
  EXPECT_EQ(help.status, 0);
  EXPECT_THAT(help.output, AllOf(HasSubstr("demo"), HasSubstr("devices"), HasSubstr("encodings")));
  EXPECT_EQ(run("--version").status, 0);
}

TEST(Cli, RefusesWhatItDoesNotKnow) {
  EXPECT_NE(run("").status, 0);
  const Ended unknown = run("trian");
  EXPECT_NE(unknown.status, 0);
  EXPECT_THAT(unknown.output, HasSubstr("unknown command 'trian'"));
  EXPECT_THAT(run("devcies").output, HasSubstr("did you mean 'devices'"));
  EXPECT_NE(run("demo --steps 0").status, 0);
  EXPECT_NE(run("demo --steps many").status, 0);
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

TEST(Cli, DemoTrainsAndReports) {
  const Ended demo = run("demo --steps 5 --encodings carope,learnable --threads 2");
  EXPECT_EQ(demo.status, 0);
  EXPECT_THAT(demo.output, AllOf(HasSubstr("carope step 5 of 5 loss"), HasSubstr("@128"),
                                 HasSubstr("tokens/s")));
  EXPECT_EQ(demo.output.substr(demo.output.find("\nlearnable  ")).find('-') != std::string::npos,
            true);
}

TEST(Cli, DemoRefusesBeforeItTrains) {
  const Ended misspelt = run("demo --steps 1000 --encodings rope,carop");
  EXPECT_EQ(misspelt.status, 1);
  EXPECT_THAT(misspelt.output,
              AllOf(HasSubstr("did you mean 'carope'"), testing::Not(HasSubstr("step"))));
  const Ended launched = run("demo --steps 1", "RANK=0 WORLD_SIZE=2");
  EXPECT_EQ(launched.status, 1);
  EXPECT_THAT(launched.output, HasSubstr("2 processes were launched"));
  EXPECT_THAT(run("demo --steps 1", "RANK=2 WORLD_SIZE=2").output,
              HasSubstr("do not fit together"));
  EXPECT_THAT(run("demo --steps 1", "RANK=x WORLD_SIZE=2").output, HasSubstr("RANK = 'x'"));
  EXPECT_THAT(run("demo --threads -3").output, HasSubstr("threads = -3"));
}

}  // namespace
}  // namespace carope::test
