// A model's beginnings, and what it does with input that it cannot take.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "model/gpt.h"
#include "model/statistics.h"
#include "position/registry.h"
#include "support/compare.h"
#include "support/tokens.h"
#include "train/optimizer.h"

namespace carope::test {
namespace {

using testing::HasSubstr;

GptConfig config_with(const std::string& encoding, Options options = {}) {
  return {.layers = 3,
          .heads = 2,
          .width = 128,
          .vocabulary = 100,
          .length = 16,
          .encoding = encoding,
          .encoding_options = std::move(options)};
}

struct Moments {
  double mean, deviation;
};

Moments moments_of(const Tensor& tensor) {
  double sum = 0.0;
  double squares = 0.0;
  for (const float value : values_of(tensor)) {
    sum += value;
    squares += static_cast<double>(value) * value;
  }
  const double mean = sum / static_cast<double>(tensor.size());
  return {mean,
          std::sqrt(std::max(0.0, squares / static_cast<double>(tensor.size()) - mean * mean))};
}

TEST(Initialise, FollowsGpt2) {
  Gpt model(config_with("learnable"));
  model.initialise(1);
  for (const Parameter& parameter : model.parameters()) {
    const std::string& name = parameter.spec.name;
    const Moments moments = moments_of(parameter.value);
    const bool branch = name.ends_with("attention_out.weight") || name.ends_with("mlp_out.weight");
    double deviation = 0.02;
    if (name.ends_with(".gain") || name.ends_with(".bias")) {
      deviation = 0.0;
    } else if (branch) {
      deviation = 0.02 / std::sqrt(6.0);  // two branches in each of three layers
    }
    EXPECT_NEAR(moments.mean, name.ends_with(".gain") ? 1.0 : 0.0, 0.002) << name;
    EXPECT_NEAR(moments.deviation, deviation, 0.05 * deviation) << name;
    EXPECT_EQ(parameter.spec.decay, parameter.spec.shape.rank() == 2) << name;
  }
}

TEST(Initialise, IsTheSameForEveryEncodingAndSeed) {
  Gpt rope(config_with("rope"));
  Gpt carope(config_with("carope"));
  rope.initialise(1);
  carope.initialise(1);
  for (const Parameter& shared : rope.parameters()) {
    EXPECT_EQ(relative_error(values_of(carope.parameter(shared.spec.name).value),
                             values_of(shared.value)),
              0.0)
        << shared.spec.name;
  }
  carope.initialise(2);
  EXPECT_GT(relative_error(values_of(carope.parameter("embedding").value),
                           values_of(rope.parameter("embedding").value)),
            0.5);
}

TEST(Initialise, StartsTheGateAtRope) {
  Gpt model(config_with("carope"));  // heads of dimension 64
  model.initialise(1);
  for (const float bias : values_of(model.parameter("block.2.position.bias").value)) {
    EXPECT_FLOAT_EQ(bias, -0.926656868F);
  }
  EXPECT_EQ(moments_of(model.parameter("block.2.position.weight").value).deviation, 0.0);

  Gpt literal(config_with("carope", {{"bias", false}, {"weight_deviation", 0.02}}));
  literal.initialise(1);
  EXPECT_NEAR(moments_of(literal.parameter("block.0.position.weight").value).deviation, 0.02,
              0.003);
  EXPECT_THROW(literal.parameter("block.0.position.bias"), Error);

  Gpt spread(config_with("carope", {{"frozen", true}, {"bias_deviation", 0.6}}));
  spread.initialise(1);
  const auto biases = values_of(spread.parameter("block.0.position.bias").value);
  EXPECT_NE(biases[0], biases[1]);
  EXPECT_NE(biases[0], values_of(spread.parameter("block.1.position.bias").value)[0]);
  EXPECT_THROW(Gpt(config_with("carope", {{"bias", false}, {"bias_deviation", 0.6}})), ConfigError);
}

TEST(Gpt, RecomputesToTheSameBitsInLessMemory) {
  for (const char* encoding : {"carope", "learnable"}) {
    Gpt model(config_with(encoding));
    model.initialise(1);
    Context ctx = Context::cpu(2);
    RandomBatch data(2, 8, 100);
    const auto gradients_with = [&](Purpose purpose) {
      Activations a = model.plan({.batch = 2, .length = 8, .purpose = purpose});
      model.loss_and_gradients(ctx, data.view(), a, Write::kOverwrite);
      std::vector<float> gradients;
      for (const Parameter& parameter : model.parameters()) {
        const auto values = values_of(parameter.gradient);
        gradients.insert(gradients.end(), values.begin(), values.end());
      }
      return gradients;
    };
    const auto kept = gradients_with(Purpose::kTraining);
    EXPECT_TRUE(same_bits(gradients_with(Purpose::kRecomputing), kept)) << encoding;
    EXPECT_LT(model.plan({.batch = 2, .length = 8, .purpose = Purpose::kRecomputing}).bytes(),
              model.plan({.batch = 2, .length = 8, .purpose = Purpose::kTraining}).bytes());
  }
}

TEST(Gpt, CountsTheWorkOfATrainedToken) {
  // Of a layer: queries, keys and values, what joins the heads, and both matrices of the MLP.
  constexpr double kLayer = 128 * 384 + 128 * 128 + 2 * 128 * 512;
  // The products with the 8.5 keys that a query meets on average, and with their values.
  constexpr double kAttention = 2 * 8.5 * 128;
  constexpr double kAll = 3 * (kLayer + kAttention) + 100 * 128;
  // A multiplication and an addition each, forwards and twice backwards.
  EXPECT_EQ(Gpt(config_with("rope")).training_flops_per_token(16), 6.0 * kAll);
  constexpr double kGate = 128 * 2;
  EXPECT_EQ(Gpt(config_with("carope")).training_flops_per_token(16), 6.0 * (kAll + 3 * kGate));
}

TEST(Gpt, KnowsWhatItsParametersAreLike) {
  const Gpt model(config_with("carope"));
  const Tensor& values = model.parameters()[1].value;
  for (std::int64_t i = 0; i < values.size(); ++i) {
    values.f32()[i] = i % 4 == 0 ? -3.0F : 1.0F;
  }
  const std::vector<ParameterStatistics> all = parameter_statistics(model);
  ASSERT_EQ(all.size(), model.parameters().size());
  EXPECT_EQ(all[1].name, model.parameters()[1].spec.name);
  EXPECT_EQ(all[1].shape, values.shape());
  EXPECT_NEAR(all[1].mean, 0.0, 1e-12);
  EXPECT_NEAR(all[1].deviation, std::sqrt(3.0), 1e-12);
  EXPECT_EQ(all[1].largest, 3.0);
}

class BadInput : public testing::Test {
 protected:
  static std::string message_of(const std::function<void()>& body) {
    try {
      body();
    } catch (const Error& error) {
      return error.what();
    }
    return "(nothing thrown)";
  }

  Gpt model_{config_with("carope")};
  Context ctx_ = Context::cpu(2);
  RandomBatch data_{2, 8, 100};
  Activations training_ = model_.plan({.batch = 2, .length = 8, .purpose = Purpose::kTraining});
  Activations inference_ = model_.plan({.batch = 2, .length = 8, .purpose = Purpose::kEvaluation});
  Activations prefill_ = model_.plan({.batch = 2, .length = 8, .purpose = Purpose::kPrefill});
};

TEST_F(BadInput, SequencesThatDoNotFit) {
  Batch batch = data_.view();
  std::vector<std::int32_t> offsets{3, 3};
  batch.seq.offsets = Tensor::of(offsets, {2});
  EXPECT_THAT(
      message_of([&] { model_.loss_and_gradients(ctx_, batch, training_, Write::kOverwrite); }),
      HasSubstr("through a decode state"));
  RandomBatch longer(2, 9, 100);
  EXPECT_THAT(message_of([&] { model_.loss(ctx_, longer.view(), training_); }),
              HasSubstr("planned for 2 x 8 tokens, not 2 x 9"));
  EXPECT_THAT(message_of([&] {
                model_.loss_and_gradients(ctx_, data_.view(), inference_, Write::kOverwrite);
              }),
              HasSubstr("planned for training"));
}

TEST(Models, WithoutARotationTakeHeadsOfAnyDimension) {
  for (const char* encoding : {"none", "alibi", "learnable"}) {
    Gpt model({.layers = 1,
               .heads = 1,
               .width = 1028,
               .vocabulary = 20,
               .length = 2,
               .encoding = encoding});
    model.initialise(1);
    Activations a = model.plan({.length = 2});
    Context ctx = Context::cpu(2);
    const RandomBatch batch(1, 2, 20);
    EXPECT_GT(model.loss_and_gradients(ctx, RandomBatch(batch).view(), a, Write::kOverwrite), 0.0);
  }
}

TEST_F(BadInput, DocumentsThatMakeNoSense) {
  Activations documents = model_.plan({.batch = 2, .length = 8, .documents = true});
  const auto message_for = [&](std::size_t token, std::int32_t start) {
    RandomBatch packed(2, 8, 100);
    packed.pack({0, 4});
    packed.document_start[token] = start;
    return message_of([&] { model_.loss(ctx_, packed.view(), documents); });
  };
  EXPECT_THAT(message_of([&] {
                RandomBatch packed(2, 8, 100);
                packed.pack({0, 4});
                model_.loss(ctx_, packed.view(), training_);
              }),
              HasSubstr("planned for rows of one document"));
  EXPECT_THAT(message_for(3, 0), HasSubstr("(nothing thrown)"));
  EXPECT_THAT(message_for(3, -1), HasSubstr("document_start = -1 at token 3 of row 0"));
  EXPECT_THAT(message_for(11, 4), HasSubstr("document_start = 4 at token 3 of row 1"));
  EXPECT_THAT(message_for(5, 0), HasSubstr("at token 5 of row 0"));
  EXPECT_THAT(message_for(0, 1), HasSubstr("at token 0 of row 0"));
}

TEST_F(BadInput, AFailedDecodeLeavesItsStateAlone) {
  model_.initialise(1);
  const auto phase = [](const DecodeState& state) {
    const Tensor& values = state.layers.front().phase;
    return std::vector<std::uint32_t>(values.data<std::uint32_t>(),
                                      values.data<std::uint32_t>() + values.size());
  };
  DecodeState state = model_.plan_decoding(2, 12);
  const Batch batch = data_.view();
  model_.forward(ctx_, batch.seq, batch.tokens, prefill_, &state);
  const auto before = phase(state);
  EXPECT_THAT(message_of([&] { model_.forward(ctx_, batch.seq, batch.tokens, prefill_, &state); }),
              HasSubstr("16 tokens do not fit a decode state of 12"));
  EXPECT_EQ(state.longest(), 8);
  EXPECT_EQ(phase(state), before);
  DecodeState other = model_.plan_decoding(3, 12);
  EXPECT_THAT(message_of([&] { model_.forward(ctx_, batch.seq, batch.tokens, prefill_, &other); }),
              HasSubstr("for 3 sequences, not 2"));
}

TEST_F(BadInput, DecodingPastTheLastPosition) {
  Gpt model(config_with("learnable"));  // of 16 positions
  model.initialise(1);
  DecodeState state = model.plan_decoding(2, 24);
  Activations a = model.plan({.batch = 2, .length = 8, .purpose = Purpose::kPrefill});
  const Batch batch = data_.view();
  const auto decode = [&] { model.forward(ctx_, batch.seq, batch.tokens, a, &state); };
  decode();
  EXPECT_EQ(message_of(decode), "(nothing thrown)");
  EXPECT_THAT(message_of(decode), HasSubstr("24 tokens is past the 16 positions"));
  EXPECT_EQ(state.longest(), 16);
}

TEST_F(BadInput, NanReachesTheLoss) {
  for (const char* name : {"embedding", "block.0.qkv.bias", "block.1.position.bias",
                           "block.2.position.weight", "block.1.mlp_in.weight"}) {
    model_.initialise(1);
    EXPECT_TRUE(std::isfinite(model_.loss(ctx_, data_.view(), inference_)));
    const Tensor& values = model_.parameter(name).value;
    std::fill_n(values.f32(), values.size(), std::numeric_limits<float>::quiet_NaN());
    EXPECT_TRUE(std::isnan(model_.loss(ctx_, data_.view(), inference_))) << name;
  }
}

TEST_F(BadInput, AGradientThatIsNotFiniteChangesNothing) {
  model_.initialise(1);
  Optimizer optimizer(model_.parameters(), {});
  model_.loss_and_gradients(ctx_, data_.view(), training_, Write::kOverwrite);
  optimizer.step(ctx_, 1e-3);
  const Parameter& parameter = model_.parameter("block.0.qkv.weight");
  const std::vector<float> before(parameter.value.f32(),
                                  parameter.value.f32() + parameter.value.size());
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    parameter.gradient.f32()[5] = bad;
    EXPECT_FALSE(std::isfinite(optimizer.step(ctx_, 1e-3)));
    EXPECT_EQ(optimizer.steps(), 1);
    EXPECT_EQ((relative_error<float, float>(values_of(parameter.value), before)), 0.0);
  }
}

/// Every encoding, widths and vocabularies that are no multiples of anything, and more ranks than
/// some buckets have tensors.
TEST(ParametersInMemory, BeginWhereEveryKernelCanReadThem) {
  const auto expect_aligned = [](const Tensor& tensor, const std::string& name) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.raw()) % Memory::kAlignment, 0U) << name;
  };
  for (const std::string& encoding : encoding_names()) {
    for (const std::int64_t width : {12, 36, 100}) {
      GptConfig config = config_with(encoding);
      config.width = width;
      config.vocabulary = 51;
      const Gpt model(config);
      std::vector<ParameterSpec> specs;
      for (const Parameter& parameter : model.parameters()) {
        specs.push_back(parameter.spec);
      }
      for (const DType compute : {DType::kF32, DType::kBF16}) {
        for (const auto& [rank, ranks] : {std::pair{0, 1}, {1, 2}, {2, 3}, {63, 64}}) {
          SCOPED_TRACE(fmt::format("{}, width {}, {}, rank {} of {}", encoding, width,
                                   to_string(compute), rank, ranks));
          const ParameterMemory memory(specs, {}, compute,
                                       {.rank = rank, .ranks = ranks, .bucket_bytes = 10'000});
          for (const std::span<const Parameter> all : {memory.parameters(), memory.own()}) {
            for (const Parameter& parameter : all) {
              expect_aligned(parameter.value, parameter.spec.name);
              expect_aligned(parameter.gradient, parameter.spec.name);
              expect_aligned(parameter.rounded, parameter.spec.name);
            }
          }
          for (const Bucket& bucket : memory.buckets()) {
            expect_aligned(bucket.own_gradients, "own gradients");
            expect_aligned(bucket.own_weights, "own weights");
            EXPECT_EQ(bucket.own_weights.size() * ranks, bucket.weights.size());
          }
        }
      }
    }
  }
}

/// A decayed gate is pulled towards RoPE, which is an option; its bias, which makes it RoPE, never
/// is.
TEST(Model, DecaysTheGateAsItIsAsked) {
  for (const bool decay : {true, false}) {
    const Gpt model({.layers = 1,
                     .heads = 2,
                     .width = 8,
                     .vocabulary = 10,
                     .length = 4,
                     .encoding = "carope",
                     .encoding_options = {{"decay", decay}}});
    EXPECT_EQ(model.parameter("block.0.position.weight").spec.decay, decay);
    EXPECT_FALSE(model.parameter("block.0.position.bias").spec.decay);
    EXPECT_TRUE(model.parameter("block.0.qkv.weight").spec.decay);
  }
}

}  // namespace
}  // namespace carope::test
