// What trains, scores and continues on the CPU does so on a GPU, by the commands a user gives.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/file.h"
#include "support/compare.h"
#include "support/cuda_contexts.h"
#include "support/folder.h"
#include "support/naive_evaluation.h"
#include "support/program.h"
#include "support/shard_files.h"
#include "support/training.h"

namespace carope::test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::StartsWith;
using Json = nlohmann::json;

const std::string kCpu = " --device cpu ";
const std::string kFp32 = " --device cuda --precision fp32 ";
const std::string kBf16 = " --device cuda --precision bf16 --deterministic ";

class CommandsOnGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_gpu()) {
      GTEST_SKIP() << "no GPU is present";
    }
  }

  std::string path(const std::string& name) const {
    return fmt::format("'{}'", (folder_ / name).string());
  }

  void expect_success(const std::string& arguments) const {
    const Ended ended = run(arguments);
    ASSERT_EQ(ended.status, 0) << arguments << ": " << ended.output;
  }

  std::vector<double> losses(const std::string& arguments) const {
    expect_success("eval " + arguments + " --json " + path("scores.json"));
    const Json scores = Json::parse(read_file(folder_ / "scores.json"));
    std::vector<double> losses;
    for (const Json& score : scores["lengths"]) {
      losses.push_back(score["loss"]);
    }
    return losses;
  }

  void expect_the_cpus(const std::string& arguments, std::size_t lengths) const {
    const std::vector<double> cpu = losses(arguments + kCpu);
    ASSERT_EQ(cpu.size(), lengths);
    for (const DType type : {DType::kF32, DType::kBF16}) {
      const std::string& device = type == DType::kF32 ? kFp32 : kBf16;
      const std::vector<double> gpu = losses(arguments + device);
      ASSERT_EQ(gpu.size(), lengths);
      for (std::size_t i = 0; i < lengths; ++i) {
        EXPECT_NEAR(gpu[i], cpu[i], model_tolerance(type).loss) << device << i;
      }
    }
  }

  TemporaryFolder folder_;
};

TEST_F(CommandsOnGpu, TrainScoreAndContinue) {
  const std::string small = CAROPE_SOURCE_DIR "/tests/data/small";
  expect_success("data prepare --tokenizer '" + small + "/tokenizer.json' --out " + path("data") +
                 " '" + small + "/training.txt'");
  expect_success("train --device cuda --out " + path("run") + " --data.path " + path("data") +
                 " --position.encoding carope --model.vocabulary 1056 --model.layers 2 "
                 "--model.heads 2 --model.width 128 --model.length 128 --train.batch_tokens 512 "
                 "--train.micro_batch 4 --train.tokens 15360 --train.validate_tokens 512 "
                 "--train.learning_rate 3e-3 --train.warmup_steps 2");
  expect_the_cpus(path("run") + " --lengths 64,128", 2);

  const auto text = [&](const std::string& device, const std::string& more) {
    const Ended ended =
        run("generate " + path("run") + device + more +
            " --prompt 'The water' --tokens 40 --ignore-end 2>/dev/null || exit; true");
    EXPECT_EQ(ended.status, 0) << ended.output;
    EXPECT_THAT(ended.output, StartsWith("The water"));
    return ended.output;
  };
  EXPECT_EQ(text(kFp32, "--temperature 0"), text(kCpu, "--temperature 0"));
  // The same draws, from probabilities that agree to many digits.
  EXPECT_EQ(text(kFp32, "--seed 3"), text(kCpu, "--seed 3"));
  const std::string drawn = text(kBf16, "--seed 3");
  EXPECT_GT(drawn.size(), 60U);
  EXPECT_EQ(text(kBf16, "--seed 3"), drawn);
  EXPECT_NE(text(kBf16, "--seed 4"), drawn);
}

TEST_F(CommandsOnGpu, ScoreAWindowOf32kTokens) {
  constexpr std::int64_t kLong = 32'768;
  write_training_data(folder_ / "data");
  expect_success("train --out " + path("run") + " " + small_training(folder_ / "data") +
                 " --position.encoding carope --model.layers 1 --model.heads 1 --model.width 64");
  fs::create_directory(folder_ / "long");
  const auto tokens = random_tokens(40'000);
  write_bytes(folder_ / "long" / "x_val_000000.bin", shard_bytes({tokens.begin(), tokens.end()}));
  expect_the_cpus(
      fmt::format("{0} --data {1} --tokens {2} --lengths {2}", path("run"), path("long"), kLong),
      1);
}

TEST_F(CommandsOnGpu, ReproduceAnExperiment) {
  write_training_data(folder_ / "data");
  expect_success("reproduce --device cuda --out " + path("a") + " " +
                 small_training(folder_ / "data") +
                 " --train.tokens 5120 --train.validate_tokens 512");
  const Json runs = Json::parse(read_file(folder_ / "a" / "results.json"))["runs"];
  ASSERT_EQ(runs.size(), 4U);
  for (const Json& one : runs) {
    EXPECT_LT(one["perplexity"]["16"], 40.0) << one;  // 50 is guessing
  }
  EXPECT_TRUE(fs::exists(folder_ / "a" / "carope-seed1" / "gate.json"));
  EXPECT_THAT(read_file(folder_ / "a" / "report.html"), HasSubstr("<svg"));
}

}  // namespace
}  // namespace carope::test
