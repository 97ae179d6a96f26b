// Positional encodings as data: RoPE's fractions and scalings, compositions, what is refused, and
// the way out for what data cannot say.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "model/gpt.h"
#include "position/registry.h"
#include "position/scaling.h"
#include "support/compare.h"
#include "support/errors.h"
#include "support/model_cases.h"
#include "support/tokens.h"

namespace carope::test {
namespace {

using testing::HasSubstr;
using Text = std::string;

ModelShape shape_of(std::int64_t head_dim, std::int64_t length = 512) {
  return {.layers = 2,
          .heads = 4,
          .key_heads = 4,
          .head_dim = head_dim,
          .width = 4 * head_dim,
          .length = length,
          .served = length};
}

std::vector<std::uint32_t> increments_of(const Encoding& encoding) {
  return std::get<FixedTurns>(encoding.rotation.value().turns).increments;
}

std::string refusal(const std::string& name, const Options& options = {}) {
  return message_of<ConfigError>([&] { make_encoding(name, shape_of(64), options); });
}

/// What transformers' ROPE_INIT_FUNCTIONS give for the same settings, in fp32.
TEST(RopeScaling, EqualsTransformers) {
  constexpr double kRoundingOfFloat = 1e-6;
  std::ifstream file(std::string(CAROPE_SOURCE_DIR) + "/tests/golden/rope_scaling.json");
  const nlohmann::json golden = nlohmann::json::parse(file);
  std::map<std::string, int> kinds;
  for (const nlohmann::json& c : golden.at("cases")) {
    SCOPED_TRACE(c.dump().substr(0, 160));
    ModelShape shape = shape_of(c.at("head_dim"));
    shape.served = c.at("length");
    const std::string scaling = c.at("scaling");
    ++kinds[scaling];
    const Encoding encoding =
        make_encoding("rope", shape,
                      {{"scaling", scaling},
                       {"factor", c.at("factor").get<double>()},
                       {"base", c.at("base").get<double>()},
                       {"rotary_fraction", c.at("rotary_fraction").get<double>()},
                       {"original_length", c.at("original_length").get<std::int64_t>()}});
    const auto expected = c.at("inverse_frequencies").get<std::vector<double>>();
    EXPECT_EQ(encoding.rotation->pairs, static_cast<std::int64_t>(expected.size()));
    const std::vector<std::uint32_t> found = increments_of(encoding);
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t p = 0; p < found.size(); ++p) {
      // An increment is rounded to 2^-32 turns.
      EXPECT_NEAR(found[p] / kTurnsPerRadian, expected[p],
                  kRoundingOfFloat * expected[p] + 1.0 / kTurnsPerRadian)
          << "pair " << p;
    }
    EXPECT_NEAR(static_cast<double>(encoding.rotation->magnitude),
                c.at("attention_factor").get<double>(), 1e-7);
  }
  EXPECT_EQ(kinds.size(), 6U);
}

TEST(RopeScaling, IsPutOnATrainedModel) {
  const Options options{{"base", 500.0}};
  const Options scaled = with_rope_scaling("rope", shape_of(64), options, "yarn:4");
  EXPECT_EQ(
      increments_of(make_encoding("rope", shape_of(64), scaled)),
      increments_of(make_encoding("rope", shape_of(64),
                                  {{"base", 500.0}, {"scaling", Text("yarn")}, {"factor", 4.0}})));
  const Options composed = with_rope_scaling("rope+alibi", shape_of(64), {}, "linear:2");
  EXPECT_EQ(increments_of(make_encoding("rope+alibi", shape_of(64), composed)),
            increments_of(make_encoding("rope", shape_of(64),
                                        {{"scaling", Text("linear")}, {"factor", 2.0}})));
  const auto said = [&](const char* encoding, const char* scaling) {
    return message_of<ConfigError>([&] { with_rope_scaling(encoding, shape_of(64), {}, scaling); });
  };
  EXPECT_THAT(said("carope", "yarn:4"), HasSubstr("has no option 'scaling'"));
  EXPECT_THAT(said("none", "yarn:4"), HasSubstr("has no option 'scaling'"));
  EXPECT_THAT(said("rope", "none:1"), HasSubstr("NAME:FACTOR"));
  EXPECT_THAT(said("rope", ""), HasSubstr("NAME:FACTOR"));
  EXPECT_THAT(said("rope", "yarn"), HasSubstr("NAME:FACTOR"));
  EXPECT_THAT(said("rope", "yam:4"), HasSubstr("yarn"));
  EXPECT_THAT(said("rope", "yarn:"), HasSubstr("NAME:FACTOR"));
  EXPECT_THAT(said("rope", "yarn:4x"), HasSubstr("NAME:FACTOR"));
  EXPECT_THAT(said("rope", "yarn:0.5"), HasSubstr("'yarn:0.5': position.factor = 0.5"));
  EXPECT_EQ(canonical_scaling("yarn:4.0"), "yarn:4");
  EXPECT_EQ(canonical_scaling("none"), "none");
}

TEST(RopeScaling, RefusesWhatMakesNoSense) {
  EXPECT_THAT(refusal("rope", {{"factor", 4.0}}), HasSubstr("nothing to scale"));
  EXPECT_THAT(refusal("rope+alibi", {{"rope.factor", 4.0}}),
              HasSubstr("position.rope.factor = 4 has nothing to scale"));
  EXPECT_THAT(refusal("rope", {{"scaling", Text("yarn")}, {"factor", 0.9}}),
              HasSubstr("position.factor = 0.9"));
  EXPECT_THAT(refusal("rope", {{"scaling", Text("yam")}}), HasSubstr("one of none, linear"));
  EXPECT_THAT(refusal("rope", {{"scaling", Text("yarn")}, {"factor", 2.0}, {"fraction", 0.5}}),
              HasSubstr("use position.rotary_fraction"));
  // A factor so large that sums with it lose the length still serves what was trained as it was.
  const Options huge{{"scaling", Text("dynamic_ntk")}, {"factor", 1e17}};
  EXPECT_EQ(increments_of(make_encoding("rope", shape_of(64), huge)),
            increments_of(make_encoding("rope", shape_of(64), {})));
}

TEST(PartialRope, LetsTheSlowestPairsStand) {
  const auto whole = increments_of(make_encoding("rope", shape_of(64), {}));
  const auto half = increments_of(make_encoding("rope", shape_of(64), {{"fraction", 0.5}}));
  ASSERT_EQ(half.size(), 32U);
  for (std::size_t p = 0; p < half.size(); ++p) {
    EXPECT_EQ(half[p], p < 16 ? whole[p] : 0U);
  }
}

TEST(PartialRope, LetsTheFirstChannelsTurnAmongThemselves) {
  const Encoding quarter = make_encoding("rope", shape_of(64), {{"rotary_fraction", 0.25}});
  EXPECT_EQ(quarter.rotation->pairs, 8);
  EXPECT_EQ(increments_of(quarter), increments_of(make_encoding("rope", shape_of(16), {})));
}

TEST(PartialRope, RefusesSharesThatAreNone) {
  EXPECT_THAT(refusal("rope", {{"fraction", 1.5}}), HasSubstr("position.fraction = 1.5"));
  EXPECT_THAT(refusal("rope", {{"fraction", 0.01}}), HasSubstr("lets none of 32 pairs turn"));
  EXPECT_THAT(refusal("rope", {{"rotary_fraction", 0.0}}), HasSubstr("rotary_fraction = 0"));
  EXPECT_THAT(refusal("rope", {{"rotary_fraction", 0.05}}), HasSubstr("leaves 3 of a head's 64"));
}

TEST(Compositions, HaveTheirPartsAndNames) {
  Options resolved;
  const Encoding encoding =
      make_encoding("carope+alibi", shape_of(64), {{"carope.base", 500.0}}, &resolved);
  EXPECT_TRUE(encoding.bias);
  ASSERT_NE(gate_of(encoding), nullptr);
  EXPECT_EQ(gate_of(encoding)->weight.name, "carope.weight");
  EXPECT_EQ(gate_of(encoding)->bias->name, "carope.bias");
  EXPECT_EQ(gate_of(encoding)->bias->init.mean, rope_gate_bias(32, 500.0));
  EXPECT_EQ(resolved.at("carope.base"), OptionValue(500.0));
  EXPECT_TRUE(resolved.contains("carope.exponent_start"));
  EXPECT_EQ(gate_of(make_encoding("carope", shape_of(64), {}))->weight.name, "weight");
  EXPECT_EQ(
      make_encoding("rope+learnable", shape_of(64), {{"learnable.positions", std::int64_t{600}}})
          .max_length,
      600);
}

TEST(Compositions, RefuseTwoPartsThatDoTheSame) {
  EXPECT_THAT(refusal("rope+carope"), HasSubstr("both 'rope' and 'carope' rotate q and k"));
  EXPECT_THAT(refusal("alibi+alibi"), HasSubstr("'alibi' occurs twice"));
  EXPECT_THAT(refusal("learnable+sinusoidal"), HasSubstr("add to the embedding"));
  EXPECT_THAT(refusal("rope+"), HasSubstr("a name is empty"));
  EXPECT_THAT(refusal("rope+alibi", {{"carope.base", 500.0}}), HasSubstr("have no such option"));
  EXPECT_THAT(refusal("rope", {{"rope.base", 500.0}}), HasSubstr("write position.base"));
  EXPECT_THAT(refusal("rope+alib"), HasSubstr("did you mean 'alibi'"));
  EXPECT_THAT(refusal("rope+alibi", {{"base", 500.0}}), HasSubstr("position.rope.NAME"));
  EXPECT_THAT(refusal("rope+alibi", {{"rope.bass", 500.0}}), HasSubstr("did you mean 'base'"));
}

TEST(Encodings, AreCheckedAgainstTheModel) {
  const auto said = [](const Encoding& encoding) {
    return message_of<ConfigError>([&] { check_encoding(encoding, shape_of(64)); });
  };
  const auto rotation = [](auto turns, std::int64_t pairs) {
    return Encoding{.rotation = RotationSpec{.turns = turns, .pairs = pairs}};
  };
  EXPECT_THAT(said(rotation(FixedTurns{}, 16)), HasSubstr("0 increments, but the model needs 16"));
  EXPECT_THAT(said(rotation(FixedTurns{rope_increments(33, 10.0)}, 33)),
              HasSubstr("rotates 33 pairs of a head of 64"));
  EXPECT_THAT(said(rotation(FixedTurns{}, 0)), HasSubstr("1 to 32 are possible"));
  EXPECT_THAT(said(rotation(PowerTurns{.gate = {}, .ratios = {1.0, -1.0}}, 2)),
              HasSubstr("a ratio of -1"));
  EXPECT_THAT(said({.bias = Slopes{{1.0F}}}), HasSubstr("1 slopes"));
  EXPECT_THAT(said({.additive = Sinusoids{}}), HasSubstr("0 frequencies of sines"));
  EXPECT_EQ(said(make_encoding("carope+alibi", shape_of(64), {})), "(nothing thrown)");
}

TEST(Options, ThatAreNoPropertyOfTheMethodAreReadAndIgnored) {
  Options resolved;
  make_encoding("carope", shape_of(64), {{"chunk", std::int64_t{64}}}, &resolved);
  EXPECT_FALSE(resolved.contains("chunk"));
}

GptConfig small_model(const std::string& encoding, const Options& options = {}) {
  return {.layers = 2,
          .heads = 2,
          .width = 16,
          .vocabulary = 40,
          .length = 12,
          .encoding = encoding,
          .encoding_options = options};
}

/// RoPE as functions of the position: what data can say, said the slow way.
Encoding rope_by_functions() {
  const auto turn = [](double direction) {
    return [=](std::int64_t position, std::span<float> head) {
      const std::size_t pairs = head.size() / 2;
      for (std::size_t p = 0; p < pairs; ++p) {
        const double angle = direction * static_cast<double>(position + 1) *
                             std::pow(10.0, -static_cast<double>(p) / static_cast<double>(pairs));
        const double x = head[p];
        const double y = head[p + pairs];
        head[p] = static_cast<float>(x * std::cos(angle) - y * std::sin(angle));
        head[p + pairs] = static_cast<float>(x * std::sin(angle) + y * std::cos(angle));
      }
    };
  };
  return {.rotation = RotationSpec{
              .turns = CustomTurns{.apply = turn(1.0), .transpose = turn(-1.0)}, .pairs = 4}};
}

TEST(CustomTurns, GiveTheLossAndGradientsOfWhatDataSays) {
  const GptConfig config = small_model("rope", {{"base", 10.0}});
  Gpt rope(config);
  Gpt custom(config, rope_by_functions());
  Context ctx = Context::cpu(2);
  for (const bool packed : {false, true}) {
    RandomBatch batch(2, 12, 40);
    if (packed) {
      batch.pack({0, 5});
    }
    const auto run = [&](Gpt& model) {
      model.initialise(3);
      Activations a = model.plan({.batch = 2, .length = 12, .documents = packed});
      return model.loss_and_gradients(ctx, batch.view(), a, Write::kOverwrite);
    };
    EXPECT_NEAR(run(custom), run(rope), 1e-6);
    for (std::size_t i = 0; i < rope.parameters().size(); ++i) {
      const Tensor& expected = rope.parameters()[i].gradient;
      const Tensor& found = custom.parameters()[i].gradient;
      EXPECT_LE((relative_error<float, float>(
                    {found.f32(), static_cast<std::size_t>(found.size())},
                    {expected.f32(), static_cast<std::size_t>(expected.size())})),
                tolerance(DType::kF32).gradient)
          << rope.parameters()[i].spec.name;
    }
  }
  EXPECT_EQ(custom.plan({.length = 12}).plan.rotated_by, RotatedBy::kHostFunctions);
}

/// A sequence's frequencies are those of its own length, also after others were served.
TEST(DynamicNtk, DependsOnTheLengthThatIsServed) {
  const Options options{{"scaling", Text("dynamic_ntk")}, {"factor", 2.0}};
  Gpt model(small_model("rope", options));
  model.initialise(5);
  Context ctx = Context::cpu(1);
  const auto loss_at = [&](std::int64_t length) {
    model.serve(length);
    RandomBatch batch(1, length, 40);
    Activations a = model.plan({.length = length, .purpose = Purpose::kEvaluation});
    return model.loss(ctx, batch.view(), a);
  };
  const double trained = loss_at(12);
  const double longer = loss_at(36);
  EXPECT_EQ(loss_at(12), trained);
  GptConfig config =
      small_model("rope", {{"base", 10000.0 * std::pow(2.0 * 3.0 - 1.0, 8.0 / 6.0)}});
  Gpt same(config);
  same.initialise(5);
  RandomBatch batch(1, 36, 40);
  Activations a = same.plan({.length = 36, .purpose = Purpose::kEvaluation});
  EXPECT_NEAR(same.loss(ctx, batch.view(), a), longer, 1e-6);
}

}  // namespace
}  // namespace carope::test
