// Tokens that pass through all layers in one kernel each, in a row and after many others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "support/compare.h"
#include "support/token_pass.h"

namespace carope::test {
namespace {

/// Tokens in a row, in one kernel each.
class CudaTokensInARow : public TokenPassOnGpu {
 protected:
  using Steps = std::vector<std::vector<float>>;  // the logits of each

  static std::vector<TokenId> random_tokens(std::size_t count, std::uint64_t seed = 1) {
    const RandomBatch batch(1, static_cast<std::int64_t>(count), kVocabulary, seed);
    return {batch.tokens.begin(), batch.tokens.end()};
  }
  static void expect_same(const Steps& found, const Steps& expected) {
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t step = 0; step < found.size(); ++step) {
      ASSERT_TRUE(same_bits(found[step], expected[step])) << "step " << step;
    }
  }
};

TEST_F(CudaTokensInARow, ManyTokensAndLongContexts) {
  // Up to 4000 keys: parts of one round of keys, parts of several, and the last round of a part.
  for (const char* encoding : {"rope", "carope"}) {
    GptConfig shape = token_pass_config({encoding, encoding}, 12, 64);
    shape.length = 4100;
    DeviceModel model = make_model(shape);
    for (const std::size_t prompt : {std::size_t{1}, std::size_t{2000}, std::size_t{4000}}) {
      SCOPED_TRACE(fmt::format("{} after a prompt of {}", encoding, prompt));
      const std::vector<TokenId> tokens = random_tokens(prompt + (prompt == 1 ? 800 : 100));
      const Decoded found = decode(model, Use::kFastest, tokens, prompt);
      const Decoded again = decode(model, Use::kFastest, tokens, prompt);
      expect_same(again.logits, found.logits);
      EXPECT_EQ(again.state, found.state);
      const Decoded expected = decode(model, Use::kOneAnOperation, tokens, prompt);
      EXPECT_EQ(found.state[0], expected.state[0]);
      // Over many steps the phases of later layers part, see above.
      const std::size_t comparable = found.state[0].empty() ? found.logits.size() : kSteps;
      for (std::size_t step = 0; step < comparable; ++step) {
        ASSERT_LE((relative_error<float, float>(found.logits[step], expected.logits[step])),
                  kTolerance)
            << "step " << step;
      }
    }
  }
}

/// Makes all heads of the first layer attend to one token wherever it is, as good as alone: its
/// embedding is a pattern that their keys look for.
void attend_to(TokenId marked, const Parameter& parameter, std::vector<float>& values,
               std::size_t heads, std::size_t head_dim) {
  const std::size_t width = heads * head_dim;
  const auto pattern = [](std::size_t column) { return column % 2 == 0 ? 1.0F : -1.0F; };
  const auto key_row = [&](std::size_t head) { return width + head * head_dim; };
  const std::string& name = parameter.spec.name;
  if (name == "embedding") {
    for (std::size_t c = 0; c < width; ++c) {
      values[marked * width + c] = 0.05F * pattern(c);
    }
  } else if (name == "block.0.qkv.weight") {
    std::fill_n(values.begin(), 2 * width * width, 0.0F);  // of q and k
    for (std::size_t head = 0; head < heads; ++head) {
      for (std::size_t c = 0; c < width; ++c) {
        values[key_row(head) * width + c] = 0.25F * pattern(c);
      }
    }
  } else if (name == "block.0.qkv.bias") {
    std::fill_n(values.begin(), 2 * width, 0.0F);
    for (std::size_t head = 0; head < heads; ++head) {
      values[head * head_dim] = 1.0F;
    }
  }
}

TEST_F(CudaTokensInARow, NoKeyIsLeftOut) {
  constexpr std::size_t kHeads = 12, kHeadDim = 64;
  constexpr TokenId kMarked = kVocabulary - 1;
  GptConfig shape = token_pass_config({"none", "none"}, kHeads, kHeadDim);
  shape.length = 4100;
  DeviceModel model = make_model(shape);
  model.change_parameters([](const Parameter& parameter, std::vector<float>& values) {
    attend_to(kMarked, parameter, values, kHeads, kHeadDim);
  });
  // Where rounds and parts of keys may begin and end, and the token's own key.
  for (const std::size_t prompt : {std::size_t{191}, std::size_t{700}, std::size_t{4000}}) {
    std::vector<TokenId> plain = random_tokens(prompt + 1);
    std::replace(plain.begin(), plain.end(), kMarked, TokenId{0});
    const auto without = decode(model, Use::kOneAnOperation, plain, prompt).logits[0];
    for (std::size_t near = 0; near <= prompt + 64; near += 64) {
      for (const std::size_t place : {std::max<std::size_t>(near, 1) - 1, near}) {
        std::vector<TokenId> tokens = plain;
        tokens[std::min(place, prompt)] = kMarked;
        const auto expected = decode(model, Use::kOneAnOperation, tokens, prompt).logits[0];
        const auto found = decode(model, Use::kFastest, tokens, prompt).logits[0];
        ASSERT_GE((relative_error<float, float>(without, expected)), 10 * kTolerance);
        ASSERT_LE((relative_error<float, float>(found, expected)), kTolerance)
            << "key " << std::min(place, prompt) << " of " << prompt + 1;
      }
    }
  }
}

TEST_F(CudaTokensInARow, TwoSequencesInTurns) {
  DeviceModel model = make_model(config(2, 64));
  const std::vector<TokenId> tokens[2] = {random_tokens(300), random_tokens(300, 2)};
  Steps expected[2], found[2];
  for (const std::size_t s : {0, 1}) {
    expected[s] = decode(model, Use::kFastest, tokens[s], 1).logits;
  }
  SequenceReader first(model.ctx(), model.gpt(), 300);
  SequenceReader second(model.ctx(), model.gpt(), 300);
  SequenceReader* readers[2] = {&first, &second};
  for (std::size_t n = 0; n < 300; ++n) {
    for (const std::size_t s : {0, 1}) {
      readers[s]->read({&tokens[s][n], 1});
      if (n > 0) {
        found[s].emplace_back(readers[s]->logits().begin(), readers[s]->logits().end());
      }
    }
  }
  expect_same(found[0], expected[0]);
  expect_same(found[1], expected[1]);
}

TEST_F(CudaTokensInARow, ASequenceThatBeginsAnewSeesNothingOfTheOneBefore) {
  constexpr std::int64_t kLong = 500;
  DeviceModel model = make_model(config(2, 64));
  const std::vector<TokenId> tokens = random_tokens(kLong);
  Activations a = model.gpt().plan(1, 1, Purpose::kInference);
  DecodeState state = model.gpt().plan_decoding(1, kLong);
  DecodeStep step(model.ctx(), model.gpt());
  Steps first, second;
  for (Steps* steps : {&first, &second}) {
    for (const TokenId token : tokens) {
      const std::span<const float> logits = step.read(model.ctx(), model.gpt(), token, a, state);
      steps->emplace_back(logits.begin(), logits.end());
    }
    EXPECT_EQ(state.seen, kLong);
    state.restart();
  }
  expect_same(second, first);
}

}  // namespace
}  // namespace carope::test
