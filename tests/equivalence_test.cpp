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
  Activations rope_memory = rope.plan({.batch = 2, .length = 96, .purpose = Purpose::kTraining});
  Activations carope_memory =
      carope.plan({.batch = 2, .length = 96, .purpose = Purpose::kTraining});
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
  Activations none_memory = none.plan({.batch = 2, .length = 96, .purpose = Purpose::kEvaluation});
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
          {"carope", "carope", {}},
          {"carope_embedding", "carope", {{"source", std::string("embedding")}}},
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
  Activations a = model_.plan({.batch = 1, .length = kLength, .documents = true});
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
    Activations own = model_.plan({.batch = 1, .length = length, .purpose = Purpose::kTraining});
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

/// What comes out of sequences that are given in pieces.
struct Decoded {
  std::vector<std::vector<float>> logits;  // of every token, a row of the batch each
  std::vector<std::vector<float>> losses;
  std::vector<std::vector<std::uint32_t>> phases;

  bool operator==(const Decoded&) const = default;
};

class EveryEncodingInPieces : public testing::TestWithParam<NamedOptions> {
 protected:
  static constexpr std::int64_t kLength = 150;  // past a tile of 128 keys
  static constexpr std::int64_t kVocabulary = 50;

  // Sizes that are no multiple of a vector.
  EveryEncodingInPieces()
      : model_({.layers = 3,
                .heads = 2,
                .width = 44,
                .vocabulary = kVocabulary,
                .length = kLength,
                .encoding = GetParam().encoding,
                .encoding_options = GetParam().options}) {
    model_.initialise(5);
    perturb(model_, 0.2);
  }

  /// Rows [first, last) of the data as a batch.
  Decoded decode(const std::vector<std::int64_t>& pieces, std::size_t first, std::size_t last,
                 int threads = 2) const {
    Context ctx = Context::cpu(threads);
    const std::size_t rows = last - first;
    const auto batch = static_cast<std::int64_t>(rows);
    DecodeState state = model_.plan_decoding(batch, kLength);
    Decoded decoded{std::vector<std::vector<float>>(rows), std::vector<std::vector<float>>(rows),
                    std::vector<std::vector<std::uint32_t>>(rows)};
    for (const std::int64_t length : pieces) {
      RandomBatch piece(batch, length, kVocabulary);
      for (std::int64_t b = 0; b < batch; ++b) {
        const std::int64_t from =
            (static_cast<std::int64_t>(first) + b) * kLength + state.seen.front();
        std::copy_n(data_.tokens.begin() + from, length, piece.tokens.begin() + b * length);
        std::copy_n(data_.targets.begin() + from, length, piece.targets.begin() + b * length);
      }
      Activations a = model_.plan({.batch = batch, .length = length, .purpose = Purpose::kPrefill});
      model_.loss(ctx, piece.view(), a, &state);
      append(logits_of(ctx, model_, a), decoded.logits);
      append(values_of(a.losses), decoded.losses);
    }
    EXPECT_EQ(state.longest(), kLength);
    for (const AttentionState& layer : state.layers) {
      if (layer.phase) {
        append(std::span(layer.phase.data<std::uint32_t>(),
                         static_cast<std::size_t>(layer.phase.size())),
               decoded.phases);
      }
    }
    return decoded;
  }

  /// Deals out values, as many a row.
  template <class Values, class T>
  static void append(const Values& values, std::vector<std::vector<T>>& rows) {
    const std::size_t width = values.size() / rows.size();
    for (std::size_t row = 0; row < rows.size(); ++row) {
      rows[row].insert(rows[row].end(), values.begin() + row * width,
                       values.begin() + (row + 1) * width);
    }
  }

  Gpt model_;
  RandomBatch data_{2, kLength, kVocabulary};
};

TEST_P(EveryEncodingInPieces, AreTheBitsOfTheWholeSequence) {
  const Decoded whole = decode({kLength}, 0, 2);
  EXPECT_NE(whole.losses[0], whole.losses[1]);
  for (const std::vector<std::int64_t>& pieces : {std::vector<std::int64_t>(kLength, 1),
                                                  {64, 1, 85},
                                                  {1, 70, 63, 16},
                                                  {128, 22},
                                                  {3, 2, 5, 130, 4, 6}}) {
    EXPECT_EQ(decode(pieces, 0, 2), whole) << pieces.size() << " pieces";
  }
  EXPECT_EQ(decode({7, 90, 53}, 0, 2, 1), whole) << "on one thread";
  for (const std::size_t row : {0, 1}) {
    const Decoded alone = decode({100, 50}, row, row + 1);
    EXPECT_EQ(alone.logits.front(), whole.logits[row]);
    EXPECT_EQ(alone.losses.front(), whole.losses[row]);
    EXPECT_EQ(alone.phases.front(), whole.phases[row]);
  }
}

TEST_P(EveryEncodingInPieces, EqualAPassWithoutAState) {
  Context ctx = Context::cpu(2);
  Activations a = model_.plan({.batch = 2, .length = kLength, .purpose = Purpose::kEvaluation});
  model_.loss(ctx, data_.view(), a);
  std::vector<std::vector<float>> losses(2);
  append(values_of(a.losses), losses);
  const Decoded decoded = decode({1, 70, 63, 16}, 0, 2);
  for (const std::size_t row : {0, 1}) {
    EXPECT_LT((relative_error<float, float>(decoded.losses[row], losses[row])), kTolerance.forward);
  }
}

/// Rows that have seen different numbers of tokens go on together as each does alone.
TEST_P(EveryEncodingInPieces, RowsOfDifferentLengthsGoOnAsAlone) {
  constexpr std::int64_t kSeen[2] = {37, 12};
  constexpr std::int64_t kPiece = 5;
  Context ctx = Context::cpu(2);
  const auto read_row = [&](std::int64_t b, std::int64_t begin, std::int64_t length,
                            DecodeState& state) {
    std::vector<std::int32_t> tokens(data_.tokens.begin() + b * kLength + begin,
                                     data_.tokens.begin() + b * kLength + begin + length);
    Activations a = model_.plan({.length = length, .purpose = Purpose::kPrefill});
    model_.forward(ctx, {.length = length}, Tensor::of(tokens, {1, length}), a, &state);
    return logits_of(ctx, model_, a);
  };
  DecodeState together = model_.plan_decoding(2, kLength);
  std::vector<float> expected;
  std::vector<std::int32_t> tokens;
  for (const std::int64_t b : {0, 1}) {
    const std::int64_t seen = kSeen[b];
    DecodeState alone = model_.plan_decoding(1, kLength);
    read_row(b, 0, seen, alone);
    const auto row = [&](const Tensor& tensor) { return tensor.slice_rows(b, b + 1); };
    for (std::size_t layer = 0; layer < together.layers.size(); ++layer) {
      const AttentionState& from = alone.layers[layer];
      const AttentionState& to = together.layers[layer];
      const auto copy_row = [&](const Tensor& one, const Tensor& both) {
        copy(ctx, one, row(both.reshape({2, one.size()})));
      };
      copy_row(from.cache.keys, to.cache.keys);
      copy_row(from.cache.values, to.cache.values);
      if (from.phase) {
        copy_row(from.phase, to.phase);
      }
    }
    together.seen[static_cast<std::size_t>(b)] = seen;
    together.offsets.data<std::int32_t>()[b] = static_cast<std::int32_t>(seen);
    const std::vector<float> logits = read_row(b, seen, kPiece, alone);
    expected.insert(expected.end(), logits.begin(), logits.end());
    tokens.insert(tokens.end(), data_.tokens.begin() + b * kLength + seen,
                  data_.tokens.begin() + b * kLength + seen + kPiece);
  }
  Activations a = model_.plan({.batch = 2, .length = kPiece, .purpose = Purpose::kPrefill});
  model_.forward(ctx, {.batch = 2, .length = kPiece}, Tensor::of(tokens, {2, kPiece}), a,
                 &together);
  EXPECT_EQ(logits_of(ctx, model_, a), expected);
  EXPECT_EQ(together.seen, (std::vector<std::int64_t>{kSeen[0] + kPiece, kSeen[1] + kPiece}));
}

const auto kName = [](const auto& info) { return info.param.name; };

INSTANTIATE_TEST_SUITE_P(Encodings, EveryEncoding, testing::ValuesIn(all_encodings()), kName);
INSTANTIATE_TEST_SUITE_P(Encodings, EveryEncodingInPieces, testing::ValuesIn(all_encodings()),
                         kName);

}  // namespace
}  // namespace carope::test
