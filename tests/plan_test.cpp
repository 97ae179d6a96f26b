// The plan of a pass: which kernels serve it and what it keeps.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/gpt.h"
#include "position/registry.h"
#include "support/program.h"

namespace carope::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

GptConfig config_of(const std::string& encoding, const Options& options = {}) {
  return {.layers = 2,
          .heads = 2,
          .width = 32,
          .vocabulary = 40,
          .length = 24,
          .encoding = encoding,
          .encoding_options = options};
}

Plan plan_of(const GptConfig& config, const Pass& pass) {
  return make_plan(config, make_encoding(config.encoding, config.shape(), config.encoding_options),
                   {}, DType::kF32, pass);
}

TEST(Plan, SaysWhereTheCpuRotates) {
  const Pass pass{.batch = 2, .length = 24};
  EXPECT_EQ(plan_of(config_of("rope"), pass).rotated_by, RotatedBy::kOwnKernel);
  EXPECT_EQ(plan_of(config_of("carope+alibi"), pass).rotated_by, RotatedBy::kOwnKernel);
  EXPECT_EQ(plan_of(config_of("alibi"), pass).rotated_by, RotatedBy::kNothing);
  EXPECT_FALSE(plan_of(config_of("carope"), pass).keeps_phases);
}

TEST(Plan, KeepsOnlyWhatIsRead) {
  const Gpt model(config_of("carope"));
  const auto planned = [&](Purpose purpose) {
    return model.plan({.batch = 2, .length = 24, .purpose = purpose});
  };
  const Activations training = planned(Purpose::kTraining);
  const Activations evaluation = planned(Purpose::kEvaluation);
  EXPECT_TRUE(training.blocks[0].mlp_gelu.input);
  EXPECT_FALSE(evaluation.blocks[0].mlp_gelu.kept());
  EXPECT_FALSE(training.blocks[0].attention.phases);
  EXPECT_FALSE(evaluation.workspace.attention.dqkv);
  EXPECT_EQ(planned(Purpose::kPrefill).plan.rounding, Rounding::kByRow);
  EXPECT_EQ(evaluation.plan.rounding, Rounding::kAsFastest);
  EXPECT_LT(evaluation.bytes(), training.bytes());
}

TEST(Plan, IsExplained) {
  const Ended ended =
      run("train --explain --config gpt-tiny --train.micro_batch 2 --train.batch_tokens 1024");
  EXPECT_EQ(ended.status, 0) << ended.output;
  EXPECT_THAT(ended.output,
              AllOf(HasSubstr("encoding    carope\n"), HasSubstr("training: 2 x 512 tokens"),
                    HasSubstr("rotation    "), HasSubstr("attention   "),
                    HasSubstr("activations in evaluation: ")));
  const Ended listed = run("encodings");
  EXPECT_THAT(listed.output,
              AllOf(HasSubstr("rotates q and k by a gate"), HasSubstr("rotary_fraction = 1"),
                    HasSubstr("rotation in training"), HasSubstr("rope+alibi")));
}

}  // namespace
}  // namespace carope::test
