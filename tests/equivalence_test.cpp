// Different ways to the same numbers: CARoPE at its start and RoPE, packed and separate documents,
// a whole sequence and the same sequence in pieces.
#include <gtest/gtest.h>

#include "model/gpt.h"
#include "support/compare.h"
#include "support/tokens.h"

namespace carope::test {
namespace {

const Tolerance kTolerance = tolerance(DType::kF32);

GptConfig small_config(const std::string& encoding, Options options = {}) {
  return {.layers = 2,
          .heads = 2,
          .width = 32,
          .vocabulary = 50,
          .length = 96,
          .encoding = encoding,
          .encoding_options = std::move(options)};
}

std::vector<float> logits_of(Context& ctx, const Gpt& model, const Activations& a) {
  std::vector<float> logits(static_cast<std::size_t>(a.losses.size() * model.config().vocabulary));
  model.logits(ctx, a, Tensor::of(logits, {a.losses.size(), model.config().vocabulary}));
  return logits;
}

struct StartCase {
  std::int64_t heads;
  double base;
  const char* layout;
};

void PrintTo(const StartCase& c, std::ostream* out) {
  *out << c.heads << " heads, base " << c.base;
}

class CaropeStart : public testing::TestWithParam<StartCase> {};

TEST_P(CaropeStart, EqualsRope) {
  const auto [heads, base, layout] = GetParam();
  const Options options{{"base", base}, {"layout", std::string(layout)}};
  GptConfig rope_config = small_config("rope", options);
  GptConfig carope_config = small_config("carope", options);
  GptConfig unencoded = small_config("none");
  rope_config.heads = carope_config.heads = unencoded.heads = heads;
  Gpt rope(rope_config);
  Gpt carope(carope_config);
  rope.initialise(3);
  carope.initialise(3);
  for (const Parameter& shared :
       rope.parameters()) {  // far enough for attention to depend on position
    const double deviation = shared.spec.name.ends_with("qkv.weight") ? 0.3 : 0.05;
    perturb(shared, deviation);
    perturb(carope.parameter(shared.spec.name), deviation);
  }
  Context ctx = Context::cpu(2);
  RandomBatch data(2, 96, 50);
  const Batch batch = data.view();
  Activations rope_memory = rope.plan(2, 96, Purpose::kTraining);
  Activations carope_memory = carope.plan(2, 96, Purpose::kTraining);
  EXPECT_NEAR(rope.loss_and_gradients(ctx, batch, rope_memory, Write::kOverwrite),
              carope.loss_and_gradients(ctx, batch, carope_memory, Write::kOverwrite),
              kTolerance.loss);
  EXPECT_LT((relative_error<float, float>(logits_of(ctx, carope, carope_memory),
                                          logits_of(ctx, rope, rope_memory))),
            kTolerance.forward);
  Gpt none(unencoded);
  none.initialise(3);
  for (const Parameter& shared : none.parameters()) {
    std::copy_n(rope.parameter(shared.spec.name).value.f32(), shared.value.size(),
                shared.value.f32());
  }
  Activations none_memory = none.plan(2, 96, Purpose::kInference);
  none.forward(ctx, batch.seq, batch.tokens, none_memory);
  EXPECT_GT((relative_error<float, float>(logits_of(ctx, none, none_memory),
                                          logits_of(ctx, rope, rope_memory))),
            1000 * kTolerance.forward);  // without rotation the logits are others
  for (const Parameter& shared : rope.parameters()) {
    EXPECT_LT(relative_error(values_of(carope.parameter(shared.spec.name).gradient),
                             values_of(shared.gradient)),
              kTolerance.gradient)
        << shared.spec.name;
  }
}

INSTANTIATE_TEST_SUITE_P(
    HeadsBasesLayouts, CaropeStart,
    testing::Values(StartCase{1, 10000.0, "half"}, StartCase{2, 10000.0, "half"},
                    StartCase{4, 500.0, "interleaved"}, StartCase{8, 10000.0, "interleaved"},
                    StartCase{2, 2.08e7, "half"}, StartCase{16, 10000.0, "half"}),
    [](const auto& info) {
      return fmt::format("heads{}_base{:.0f}_{}", info.param.heads, info.param.base,
                         info.param.layout);
    });

struct NamedOptions {
  const char* name;
  const char* encoding;
  Options options;
};

void PrintTo(const NamedOptions& encoding, std::ostream* out) { *out << encoding.name; }

std::vector<NamedOptions> all_encodings() {
  return {{"alibi", "alibi", {}},
          {"carope", "carope", {{"chunk", std::int64_t{8}}}},
          {"carope_embedding",
           "carope",
           {{"source", std::string("embedding")}, {"chunk", std::int64_t{8}}}},
          {"learnable", "learnable", {}},
          {"none", "none", {}},
          {"rope", "rope", {}},
          {"sinusoidal", "sinusoidal", {}}};
}

class EveryEncoding : public testing::TestWithParam<NamedOptions> {
 protected:
  EveryEncoding() : model_(small_config(GetParam().encoding, GetParam().options)) {
    model_.initialise(5);
    perturb(model_, 0.05);
  }

  Gpt model_;
  Context ctx_ = Context::cpu(2);
};

TEST_P(EveryEncoding, PackedDocumentsEqualSeparateOnes) {
  constexpr std::int64_t kLength = 40;
  const std::vector<std::int32_t> starts{0, 7, 8, 24};
  RandomBatch packed(1, kLength, 50);
  packed.pack(starts);
  Activations a = model_.plan(1, kLength, Purpose::kTraining);
  model_.loss_and_gradients(ctx_, packed.view(), a, Write::kOverwrite);
  const std::vector<float> losses(a.losses.f32(), a.losses.f32() + kLength);
  std::vector<std::vector<float>> gradients;
  for (const Parameter& parameter : model_.parameters()) {
    const auto values = values_of(parameter.gradient);
    gradients.emplace_back(values.begin(), values.end());
  }

  std::vector<float> separate_losses;
  for (std::size_t d = 0; d < starts.size(); ++d) {
    const auto begin = packed.tokens.begin() + starts[d];
    const std::int64_t length = (d + 1 < starts.size() ? starts[d + 1] : kLength) - starts[d];
    RandomBatch document(1, length, 50);
    std::copy_n(begin, length, document.tokens.begin());
    std::copy_n(packed.targets.begin() + starts[d], length, document.targets.begin());
    Activations own = model_.plan(1, length, Purpose::kTraining);
    model_.loss_and_gradients(ctx_, document.view(), own,
                              d == 0 ? Write::kOverwrite : Write::kAccumulate,
                              static_cast<double>(length) / kLength);
    separate_losses.insert(separate_losses.end(), own.losses.f32(), own.losses.f32() + length);
  }
  EXPECT_LT((relative_error<float, float>(losses, separate_losses)), kTolerance.forward);
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const Parameter& parameter = model_.parameters()[i];
    EXPECT_LT((relative_error<float, float>(gradients[i], values_of(parameter.gradient))),
              kTolerance.gradient)
        << parameter.spec.name;
  }
}

TEST_P(EveryEncoding, PiecesEqualTheWholeSequence) {
  constexpr std::int64_t kLength = 90;
  RandomBatch data(2, kLength, 50);
  Activations whole = model_.plan(2, kLength, Purpose::kInference);
  model_.forward(ctx_, data.view().seq, data.view().tokens, whole);
  const std::vector<float> expected = logits_of(ctx_, model_, whole);

  for (const std::vector<std::int64_t>& pieces :
       {std::vector<std::int64_t>(kLength, 1), {kLength}, {64, 1, 25}, {1, 70, 19}}) {
    DecodeState state = model_.plan_decoding(2, kLength);
    std::vector<float> logits(expected.size());
    std::int64_t seen = 0;
    for (const std::int64_t length : pieces) {
      RandomBatch piece(2, length, 50);
      for (std::int64_t b = 0; b < 2; ++b) {
        std::copy_n(data.tokens.begin() + b * kLength + seen, length,
                    piece.tokens.begin() + b * length);
      }
      Activations a = model_.plan(2, length, Purpose::kInference);
      model_.forward(ctx_, piece.view().seq, piece.view().tokens, a, &state);
      const std::vector<float> part = logits_of(ctx_, model_, a);
      for (std::int64_t b = 0; b < 2; ++b) {
        std::copy_n(part.begin() + b * length * 50, length * 50,
                    logits.begin() + (b * kLength + seen) * 50);
      }
      seen += length;
    }
    EXPECT_EQ(state.seen, kLength);
    EXPECT_LT((relative_error<float, float>(logits, expected)), kTolerance.forward)
        << pieces.size() << " pieces";
  }
}

INSTANTIATE_TEST_SUITE_P(Encodings, EveryEncoding, testing::ValuesIn(all_encodings()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace carope::test
