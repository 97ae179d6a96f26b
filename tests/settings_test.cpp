#include "core/settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/errors.h"
#include "support/folder.h"
#include "train/run_config.h"

namespace carope::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const std::vector<std::string> kSections{"model", "train"};

TEST(Settings, LoadAsTheyAreWritten) {
  const Settings settings{{"model",
                           {{"whole", std::int64_t{-3}},
                            {"tenth", 0.1},
                            {"round", 10000.0},
                            {"tiny", 6e-5},
                            {"flag", true},
                            {"text", std::string("it's \"quoted\"\n\\ and more")}}},
                          {"train", {}}};
  const TemporaryFolder folder;
  const std::string text = to_toml(settings);
  EXPECT_THAT(text, AllOf(HasSubstr("tenth = 0.1\n"), HasSubstr("round = 10000.0\n"),
                          HasSubstr("tiny = 6e-05\n")));
  EXPECT_EQ(load_settings(write_bytes(folder / "a.toml", text), kSections), settings);
}

TEST(Settings, AreSetByName) {
  Settings settings{{"train", {{"steps", std::int64_t{5}}}}};
  set(settings, "train.steps", "7", kSections);
  set(settings, "train.rate", "1e-3", kSections);
  set(settings, "train.on", "true", kSections);
  set(settings, "model.name", "rope", kSections);
  set(settings, "model.path", "a/b c.d", kSections);
  set(settings, "model.quoted", "\"7\"", kSections);
  EXPECT_EQ(settings,
            (Settings{{"train", {{"steps", std::int64_t{7}}, {"rate", 1e-3}, {"on", true}}},
                      {"model",
                       {{"name", std::string("rope")},
                        {"path", std::string("a/b c.d")},
                        {"quoted", std::string("7")}}}}));
  EXPECT_THAT(message_of<ConfigError>([&] { set(settings, "trian.steps", "1", kSections); }),
              AllOf(HasSubstr("--trian.steps"), HasSubstr("did you mean 'train'")));
  EXPECT_THAT(message_of<ConfigError>([&] { set(settings, "steps", "1", kSections); }),
              HasSubstr("section.key"));
}

TEST(RunSettings, AreFilledInAndReadAsTheSameAgain) {
  Settings settings;
  set(settings, "train.batch_tokens", "4096", run_sections());
  set(settings, "position.encoding", "rope", run_sections());
  const RunConfig run = read_run(settings);
  EXPECT_EQ(run.train.batch_tokens, 4096);
  EXPECT_EQ(std::get<double>(run.resolved.at("position").at("base")), 10000.0);
  EXPECT_EQ(std::get<std::string>(run.resolved.at("data").at("order")), "shuffled");
  EXPECT_EQ(read_run(run.resolved).resolved, run.resolved);
}

TEST(RunSettings, SayWhatIsNotPossible) {
  const auto refused = [](const std::string& name, const std::string& value) {
    Settings settings;
    set(settings, name, value, run_sections());
    return message_of<ConfigError>([&] { read_run(settings); });
  };
  EXPECT_THAT(refused("train.token", "5"), HasSubstr("did you mean 'tokens'"));
  EXPECT_THAT(refused("train.batch_tokens", "5000"),
              AllOf(HasSubstr("train.batch_tokens = 5000"), HasSubstr("8 x 512"),
                    HasSubstr("give 4096 or 8192")));
  EXPECT_THAT(refused("data.order", "random"), HasSubstr("one of sequential, shuffled"));
  EXPECT_THAT(refused("optimizer.beta2", "1"), HasSubstr("below 1"));
  EXPECT_THAT(refused("position.bse", "1"), HasSubstr("did you mean 'base'"));
  EXPECT_THAT(refused("train.learning_rate", "-1"), HasSubstr("train.learning_rate = -1"));
}

TEST(LearningRate, RisesThenFollowsACosine) {
  const TrainConfig config{.learning_rate = 1.0, .final_learning_rate = 0.1, .warmup_steps = 4};
  EXPECT_DOUBLE_EQ(learning_rate_at(config, 0, 105), 0.25);
  EXPECT_DOUBLE_EQ(learning_rate_at(config, 3, 105), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate_at(config, 4, 105), 1.0);
  EXPECT_NEAR(learning_rate_at(config, 54, 105), 0.55, 1e-12);
  EXPECT_DOUBLE_EQ(learning_rate_at(config, 104, 105), 0.1);
}

}  // namespace
}  // namespace carope::test
