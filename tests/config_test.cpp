// What cannot be run is refused with a message that names the field, the value and what would be
// valid.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "model/gpt.h"
#include "support/tokens.h"
#include "train/run_config.h"

namespace carope::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// The message of the ConfigError that `body` throws.
std::string refusal(const std::function<void()>& body) {
  try {
    body();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "(not refused)";
}

std::string refusal_of(const GptConfig& config) {
  return refusal([&] { const Gpt model(config); });
}

GptConfig small() { return {.layers = 1, .heads = 2, .width = 12, .vocabulary = 7, .length = 8}; }

TEST(Config, HeadsThatDoNotDivide) {
  GptConfig config = small();
  config.heads = 5;
  EXPECT_THAT(refusal_of(config), AllOf(HasSubstr("model.heads = 5"), HasSubstr("model.width = 12"),
                                        HasSubstr("valid: 1, 2, 3, 6")));
}

TEST(Config, OddHeadDimension) {
  GptConfig config = small();
  config.heads = 4;
  EXPECT_THAT(refusal_of(config), AllOf(HasSubstr("model.heads = 4"), HasSubstr("even"),
                                        HasSubstr("valid: 1, 2, 3, 6")));
  config.width = 15;
  EXPECT_THAT(refusal_of(config), HasSubstr("model.width = 15 is odd"));
}

TEST(Config, NothingToRun) {
  GptConfig config = small();
  config.layers = 0;
  EXPECT_THAT(refusal_of(config), AllOf(HasSubstr("model.layers = 0"), HasSubstr("give 1 to")));
  config.layers = 1 << 20;
  EXPECT_THAT(refusal_of(config), HasSubstr("model.layers = 1048576 is not possible; give 1 to"));
  config = small();
  config.heads = -2;
  EXPECT_THAT(refusal_of(config), HasSubstr("model.heads = -2"));
  config = small();
  config.vocabulary = 0;
  EXPECT_THAT(refusal_of(config), HasSubstr("model.vocabulary = 0"));
}

TEST(Config, SizesBeyondReason) {
  GptConfig config = small();
  config.width = std::int64_t{1} << 40;
  EXPECT_THAT(refusal_of(config), HasSubstr("model.width = 1099511627776"));
  config = small();
  config.encoding_options = {{"exponent_start", std::int64_t{1} << 40}};
  EXPECT_THAT(refusal_of(config), HasSubstr("position.exponent_start"));
  const Gpt model(small());
  EXPECT_THAT(
      refusal([&] { model.plan({.batch = 0, .length = 8, .purpose = Purpose::kEvaluation}); }),
      HasSubstr("0 x 8"));
  EXPECT_THAT(refusal([&] { model.plan_decoding(1, -4); }), HasSubstr("-4"));
}

TEST(Config, LengthOverTheLearnableTable) {
  GptConfig config = small();
  config.encoding = "learnable";
  config.encoding_options["positions"] = std::int64_t{6};
  EXPECT_THAT(refusal_of(config), AllOf(HasSubstr("model.length = 8"), HasSubstr("6 positions"),
                                        HasSubstr("at most 6")));

  config.encoding_options.clear();
  const Gpt model(config);
  RandomBatch data(1, 9, 7);
  Context ctx = Context::cpu(1);
  Activations a = model.plan({.batch = 1, .length = 9, .purpose = Purpose::kEvaluation});
  EXPECT_THAT(refusal([&] { model.loss(ctx, data.view(), a); }),
              AllOf(HasSubstr("9 tokens"), HasSubstr("8 positions"), HasSubstr("'learnable'")));
}

TEST(Config, UnknownEncodingAndOptions) {
  GptConfig config = small();
  config.encoding = "carrope";
  EXPECT_THAT(refusal_of(config),
              AllOf(HasSubstr("position.encoding = carrope"), HasSubstr("did you mean 'carope'")));
  config.encoding = "carope";
  config.encoding_options = {{"exponent_strat", std::int64_t{1}}};
  EXPECT_THAT(refusal_of(config), AllOf(HasSubstr("position.exponent_strat"),
                                        HasSubstr("did you mean 'exponent_start'")));
  config.encoding_options = {{"layout", std::string("halves")}};
  EXPECT_THAT(refusal_of(config),
              AllOf(HasSubstr("position.layout = halves"), HasSubstr("half, interleaved")));
  config.encoding_options = {{"base", std::string("big")}};
  EXPECT_THAT(refusal_of(config), AllOf(HasSubstr("position.base = big"), HasSubstr("a number")));
  config.encoding_options = {{"base", 1.0}};
  EXPECT_THAT(refusal_of(config), HasSubstr("position.base = 1"));
  config.encoding = "none";
  config.encoding_options = {{"base", 1.0}};
  EXPECT_THAT(refusal_of(config), HasSubstr("position.base"));
}

TEST(Config, TokensOutsideTheVocabulary) {
  const Gpt model(small());
  Context ctx = Context::cpu(1);
  Activations a = model.plan({.batch = 1, .length = 4, .purpose = Purpose::kEvaluation});
  RandomBatch data(1, 4, 7);
  data.tokens[2] = 7;
  EXPECT_THROW(model.loss(ctx, data.view(), a), ShapeError);
  data.tokens[2] = -1;
  EXPECT_THROW(model.loss(ctx, data.view(), a), ShapeError);
  data.tokens[2] = 0;
  data.targets[3] = 7;
  EXPECT_THROW(model.loss(ctx, data.view(), a), ShapeError);
}

GptConfig load_model(const std::filesystem::path& path) {
  Settings settings = load_settings(path, run_sections());
  return read_model(settings);
}

class ConfigFile : public testing::Test {
 protected:
  std::string refusal_of_file(const std::string& text) {
    std::ofstream(path_) << text;
    return refusal([&] { load_model(path_); });
  }
  void TearDown() override { std::filesystem::remove(path_); }

  std::filesystem::path path_ = std::filesystem::temp_directory_path() /
                                ("carope_config_test_" + std::to_string(getpid()) + ".toml");
};

TEST_F(ConfigFile, BadFilesSayWhatAndWhere) {
  EXPECT_THAT(refusal([] { load_model("/nowhere/model.toml"); }), HasSubstr("/nowhere/model.toml"));
  EXPECT_THAT(refusal([] { load_model("/"); }), HasSubstr("/ is no file"));
  EXPECT_THAT(refusal_of_file("[model\nlayers = 2"), HasSubstr(path_.string() + ":1"));
  EXPECT_THAT(refusal_of_file("[model]\nlayer = 2"), HasSubstr("did you mean 'layers'"));
  EXPECT_THAT(refusal_of_file("[modle]\nlayers = 2"), HasSubstr("did you mean 'model'"));
  EXPECT_THAT(refusal_of_file("[model]\nlayers = \"two\""), HasSubstr("model.layers = two"));
  EXPECT_THAT(refusal_of_file("[model]\nlayers = 0"), HasSubstr("model.layers = 0"));
  EXPECT_THAT(refusal_of_file("model = 3"), HasSubstr("must be a table"));
  EXPECT_THAT(refusal_of_file("[model]\nlayers = [1]"), HasSubstr("model.layers"));
  EXPECT_THAT(refusal_of_file("[position]\nencoding = 3"), HasSubstr("position.encoding = 3"));
}

TEST_F(ConfigFile, TheFileWins) {
  std::ofstream(path_) << "[model]\nlayers = 3\nheads = 2\nwidth = 24\n[position]\nencoding = "
                          "\"rope\"\nbase = 500\n";
  const GptConfig config = load_model(path_);
  EXPECT_EQ(config.layers, 3);
  EXPECT_EQ(config.width, 24);
  EXPECT_EQ(config.vocabulary, 50304);
  EXPECT_EQ(config.encoding, "rope");
  EXPECT_EQ(config.encoding_options, (Options{{"base", std::int64_t{500}}}));
}

std::int64_t parameters_of(const std::string& file) {
  GptConfig config = load_model(std::filesystem::path(CAROPE_SOURCE_DIR) / "configs" / file);
  const auto encoding = make_encoding("none", config.shape(), {});
  std::int64_t count = 0;
  lay_out_weights(config, encoding, [&](const ParameterSpec& spec) {
    count += spec.shape.size();
    return Tensor{};
  });
  return count;
}

TEST(Models, HaveThePapersRecipe) {
  for (const std::string name : {"paper-tiny.toml", "paper-small.toml"}) {
    const RunConfig run = read_run(
        load_settings(std::filesystem::path(CAROPE_SOURCE_DIR) / "configs" / name, run_sections()));
    EXPECT_EQ(run.steps(), 19000);
    EXPECT_EQ(run.train.batch_tokens, 524288);
    EXPECT_EQ(run.train.warmup_steps, 750);
    EXPECT_EQ(run.train.learning_rate, 6e-4);
    EXPECT_EQ(run.train.final_learning_rate, 6e-5);
    EXPECT_EQ(run.model.length, 512);
    EXPECT_EQ(run.model.heads, name == "paper-tiny.toml" ? 8 : 12);
    EXPECT_EQ(run.data.order, Order::kSequential);
    EXPECT_FALSE(run.data.documents);
    EXPECT_EQ(run.optimizer.beta1, 0.9);
    EXPECT_EQ(run.optimizer.beta2, 0.95);
    EXPECT_EQ(run.optimizer.epsilon, 1e-8);
    EXPECT_EQ(run.optimizer.decay, 0.1);
    EXPECT_EQ(run.optimizer.clip, 1.0);
    EXPECT_EQ(parameters_of(name), parameters_of("gpt" + name.substr(5)));
  }
}

TEST(Models, HaveThePapersSizes) {
  const auto expected = [](std::int64_t layers, std::int64_t width) {
    return 50304 * width + layers * (12 * width * width + 13 * width) + 2 * width;
  };
  EXPECT_EQ(parameters_of("gpt-tiny.toml"), expected(6, 512));
  EXPECT_EQ(parameters_of("gpt-small.toml"), expected(12, 768));
}

}  // namespace
}  // namespace carope::test
