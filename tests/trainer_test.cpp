// What Trainer does with a configuration, beside a loop of a few lines that does the same.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "data/shards/shard.h"
#include "support/compare.h"
#include "support/errors.h"
#include "support/folder.h"
#include "support/training.h"
#include "train/run_data.h"
#include "train/trainer.h"

namespace carope::test {
namespace {

using testing::HasSubstr;

constexpr TokenId kEnd = 0;  // of a text

class TrainerTest : public testing::Test {
 protected:
  TrainerTest() {
    const std::filesystem::path data = folder_ / "data";
    write_training_data(data);
    Manifest manifest = manifest_of(data);
    manifest.end_of_text = kEnd;
    manifest.save(data);
  }

  /// No setting is the default, and a step is of two micro-batches.
  RunConfig config(const Settings& more = {}) const {
    Settings settings{
        {"model",
         {{"vocabulary", std::int64_t{50}},
          {"layers", std::int64_t{2}},
          {"heads", std::int64_t{2}},
          {"width", std::int64_t{16}},
          {"length", std::int64_t{16}}}},
        {"data",
         {{"path", (folder_ / "data").string()},
          {"order", std::string("sequential")},
          {"documents", true}}},
        {"train",
         {{"tokens", std::int64_t{6 * 128}},
          {"batch_tokens", std::int64_t{128}},
          {"micro_batch", std::int64_t{4}},
          {"learning_rate", 2e-2},
          {"final_learning_rate", 7e-3},
          {"warmup_steps", std::int64_t{2}},
          {"seed", std::int64_t{2}},
          {"validate_tokens", std::int64_t{128}}}},
        {"optimizer",
         {{"beta1", 0.8}, {"beta2", 0.9}, {"epsilon", 1e-3}, {"decay", 0.3}, {"clip", 0.5}}}};
    for (const auto& [section, options] : more) {
      for (const auto& [name, value] : options) {
        settings[section][name] = value;
      }
    }
    return read_run(settings);
  }

  Loader load(Split split, std::int64_t rows) const {
    return Loader(find_shards(folder_ / "data", split), {.length = 16,
                                                         .batch = rows,
                                                         .order = Order::kSequential,
                                                         .vocabulary = 50,
                                                         .end_of_text = kEnd,
                                                         .documents = true});
  }

  TemporaryFolder folder_;
  Context ctx_ = Context::cpu(1);
  std::unique_ptr<Communicator> alone_ = make_alone();
};

double expected_rate(int step) {  // of six, two of which rise
  return step < 2 ? 2e-2 * (step + 1) / 2
                  : 7e-3 + (2e-2 - 7e-3) * (1 + std::cos(std::numbers::pi * (step - 2) / 3)) / 2;
}

TEST_F(TrainerTest, DoesWhatItsConfigurationSays) {
  const RunConfig run = config();
  Trainer trainer(ctx_, *alone_, run, folder_ / "run");
  std::vector<StepMetrics> steps;
  std::vector<ValidationMetrics> validations;
  TrainObserver observer;
  observer.step = [&](const StepMetrics& metrics) { steps.push_back(metrics); };
  observer.validation = [&](const ValidationMetrics& m) { validations.push_back(m); };
  EXPECT_TRUE(trainer.run(observer, false));
  ASSERT_EQ(steps.size(), 6U);

  Gpt gpt(run.model);
  gpt.initialise(2);
  Activations memory = gpt.plan({.batch = 4, .length = 16, .documents = true});
  Optimizer optimizer(gpt.parameters(),
                      {.beta1 = 0.8, .beta2 = 0.9, .epsilon = 1e-3, .decay = 0.3, .clip = 0.5});
  Loader loader = load(Split::kTrain, 8);
  for (int step = 0; step < 6; ++step) {
    SCOPED_TRACE(step);
    const StepMetrics& got = steps[static_cast<std::size_t>(step)];
    const Batch batch = batch_of(loader.next());
    EXPECT_TRUE(batch.seq.document_start);
    const double first =
        gpt.loss_and_gradients(ctx_, batch.slice(0, 4), memory, Write::kOverwrite, 0.5);
    const double second =
        gpt.loss_and_gradients(ctx_, batch.slice(4, 4), memory, Write::kAccumulate, 0.5);
    const double norm = optimizer.step(ctx_, expected_rate(step));
    EXPECT_GT(norm, 0.5);  // so that it is clipped
    EXPECT_NEAR(got.loss, (first + second) / 2, 1e-6);
    EXPECT_NEAR(got.norm, norm, 1e-6 * norm);
    EXPECT_NEAR(got.learning_rate, expected_rate(step), 1e-12);
    EXPECT_EQ(got.tokens, 128 * (step + 1));
    const double before = step == 0 ? 0.0 : steps[static_cast<std::size_t>(step - 1)].seconds;
    EXPECT_NEAR(got.tokens_per_second, 128 / (got.seconds - before), 1e-3 * got.tokens_per_second);
  }
  for (const Parameter& parameter : gpt.parameters()) {
    const Parameter& trained = trainer.model().parameter(parameter.spec.name);
    EXPECT_LE((relative_error<float, float>(
                  {trained.value.f32(), static_cast<std::size_t>(trained.value.size())},
                  {parameter.value.f32(), static_cast<std::size_t>(parameter.value.size())})),
              1e-6)
        << parameter.spec.name;
  }

  // 128 tokens: the first two micro-batches of many.
  Loader validation = load(Split::kValidation, 4);
  ASSERT_GT(validation.windows(), 8 + 4);
  double expected = 0.0;
  for (int i = 0; i < 2; ++i) {
    expected += gpt.loss(ctx_, batch_of(validation.next()), memory) / 2;
  }
  ASSERT_EQ(validations.size(), 1U);
  EXPECT_NEAR(validations[0].loss, expected, 1e-6);
}

TEST_F(TrainerTest, DoesNotLeaveOutTheLastTokens) {
  EXPECT_EQ(config({{"train", {{"tokens", std::int64_t{128 * 6 + 1}}}}}).steps(), 7);
}

TEST_F(TrainerTest, StopsAtALossFarAboveGuessing) {
  const RunConfig run = config({{"train",
                                 {{"learning_rate", 2.0},
                                  {"final_learning_rate", 2.0},
                                  {"warmup_steps", std::int64_t{0}},
                                  {"tokens", std::int64_t{128 * 200}}}}});
  Trainer trainer(ctx_, *alone_, run, folder_ / "run");
  double highest = 0.0;
  TrainObserver observer;
  observer.step = [&](const StepMetrics& metrics) { highest = std::max(highest, metrics.loss); };
  const std::string said = message_of<TrainingError>([&] { trainer.run(observer, false); });
  EXPECT_THAT(said, HasSubstr("where guessing has 3.91"));
  EXPECT_THAT(said, testing::Not(testing::ContainsRegex("nan|inf")));
  EXPECT_LE(highest, 2 * std::log(50.0));
}

}  // namespace
}  // namespace carope::test
