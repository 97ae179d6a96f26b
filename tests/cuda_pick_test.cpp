// Tokens that are chosen on the GPU, as a sampler on the host would.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "support/errors.h"
#include "support/token_pass.h"

namespace carope::test {
namespace {

/// What a sampler on the host makes of a sequence whose tokens are read one by one.
struct HostContinued {
  std::vector<TokenId> tokens;
  std::int64_t seen;
  std::vector<std::vector<std::uint32_t>> state;
};

std::vector<std::vector<std::uint32_t>> phases_of(const SequenceReader& reader) {
  std::vector<std::vector<std::uint32_t>> phases;
  for (const DecodeState::Layer& layer : reader.state().layers) {
    phases.push_back(read_words(layer.position[0]));
  }
  return phases;
}

HostContinued continue_on_host(DeviceModel& model, Sampler& sampler, TokenId begin,
                               std::size_t count, std::optional<TokenId> end) {
  SequenceReader reader(model.ctx(), model.gpt(), static_cast<std::int64_t>(count) + 1);
  std::vector<TokenId> tokens;
  TokenId token = begin;
  while (tokens.size() < count && (tokens.empty() || token != end)) {
    reader.read({&token, 1});
    token = sampler.pick(reader.logits(), reader.state().seen);
    tokens.push_back(token);
  }
  return {tokens, reader.state().seen, phases_of(reader)};
}

class CudaPick : public TokenPassOnGpu {
 protected:
  void SetUp() override {
    TokenPassOnGpu::SetUp();
    if (!IsSkipped()) {
      ctx_.emplace(cuda_context());
    }
  }

  static std::vector<TokenId> range(TokenId first, TokenId last) {
    std::vector<TokenId> ids;
    for (TokenId id = first; id < last; ++id) {
      ids.push_back(id);
    }
    return ids;
  }

  TokenPick pick(const TokenChoice& choice, const std::vector<float>& logits,
                 double uniform = 0.0) {
    Context& ctx = *ctx_;
    const Memory values(ctx.device(), logits.size() * sizeof(float));
    const Memory next(ctx.device(), sizeof(NextToken));
    copy_from_host(values.data(), logits.data(), values.bytes(), ctx.device());
    NextToken token{.token = 3, .offset = 6, .ended = 0};
    copy_from_host(next.data(), &token, sizeof(token), ctx.device());
    const std::shared_ptr<void> pinned = cuda::allocate_pinned(4 * sizeof(TokenPick));
    auto* picks = static_cast<TokenPick*>(pinned.get());
    picks[2].uniform = uniform;
    pick_token(ctx, choice,
               Tensor(values.data(), {{static_cast<std::int64_t>(logits.size())}}, ctx.device()),
               Tensor(next.data(), {{3}, DType::kI32}, ctx.device()), picks, 4);
    wait(ctx);
    copy_to_host(&token, next.data(), sizeof(token), ctx.device());
    EXPECT_EQ(token.offset, 7);
    EXPECT_EQ(token.token, picks[2].token < 0 ? 3 : picks[2].token);
    ended_ = token.ended != 0;
    return picks[2];
  }

  std::optional<Context> ctx_;
  bool ended_ = false;
};

TEST_F(CudaPick, GreedilyTheFirstOfTheHighest) {
  for (const std::size_t size : {std::size_t{70}, std::size_t{1000}, std::size_t{70001}}) {
    const auto count = static_cast<std::int64_t>(size) - 10;
    const TokenChoice choice{.first = 4, .count = count, .temperature = 0.0, .end = 40};
    std::vector<float> logits(size, -1.0F);
    logits[3] = 9.0F;  // not allowed, nor is the next
    logits[size - 6] = 9.0F;
    EXPECT_EQ(pick(choice, logits).token, 4) << size;
    EXPECT_FALSE(ended_);
    logits[size - 7] = 2.0F;
    EXPECT_EQ(pick(choice, logits).token, static_cast<std::int32_t>(size) - 7);
    logits[43] = logits[size / 2] = 2.0F;
    EXPECT_EQ(pick(choice, logits).token, std::min(43, static_cast<std::int32_t>(size / 2)));
    logits[40] = logits[41] = 3.0F;
    EXPECT_EQ(pick(choice, logits).token, 40);
    EXPECT_EQ(pick(choice, logits).logit, 3.0F);
    EXPECT_TRUE(ended_);
  }
}

TEST_F(CudaPick, ByTheDrawOfTheHost) {
  for (const std::size_t size : {std::size_t{90}, std::size_t{50304}, std::size_t{65000}}) {
    std::vector<float> logits;
    for (std::size_t i = 0; i < size; ++i) {
      logits.push_back(static_cast<float>(4.0 * uniform("logits", i)));
    }
    for (const double temperature : {0.3, 1.0}) {
      Sampler sampler({.temperature = temperature}, range(5, static_cast<TokenId>(size - 9)));
      for (std::int64_t index = 0; index < 200; ++index) {
        ASSERT_EQ(pick(*sampler.choice(), logits, sampler.uniform(index)).token,
                  static_cast<std::int32_t>(sampler.pick(logits, index)))
            << size << " " << index;
      }
    }
    const TokenChoice choice = *Sampler({}, range(5, static_cast<TokenId>(size - 9))).choice();
    EXPECT_EQ(pick(choice, logits, 0.0).token, 5);
    EXPECT_EQ(pick(choice, logits, 0x1.fffffffffffffp-1).token,
              static_cast<std::int32_t>(size) - 10);
  }
}

TEST_F(CudaPick, NeverDrawsWhatHasNoWeight) {
  constexpr float kFarBehind = -1e4F;  // e^this is 0
  for (const std::size_t size : {std::size_t{90}, std::size_t{50304}}) {
    const TokenChoice choice{.first = 0, .count = static_cast<std::int64_t>(size)};
    for (const std::size_t weighted : {std::size_t{1}, std::size_t{40}, size / 2, size - 1}) {
      std::vector<float> logits(size, kFarBehind);
      logits[weighted] = 1.0F;
      logits[weighted - 1] = 0.1F;
      EXPECT_EQ(pick(choice, logits, 0.0).token, static_cast<std::int32_t>(weighted) - 1);
      EXPECT_EQ(pick(choice, logits, 0x1.fffffffffffffp-1).token,
                static_cast<std::int32_t>(weighted));
    }
  }
}

TEST_F(CudaPick, NamesTheFirstLogitThatIsNotFinite) {
  std::vector<float> logits(500, 1.0F);
  logits[2] = std::numeric_limits<float>::quiet_NaN();  // nobody asks for it
  logits[333] = std::numeric_limits<float>::infinity();
  logits[444] = std::numeric_limits<float>::quiet_NaN();
  for (const double temperature : {0.0, 1.0}) {
    const TokenPick found = pick({.first = 4, .count = 490, .temperature = temperature}, logits);
    EXPECT_EQ(found.token, -1 - 333);
    EXPECT_EQ(found.logit, std::numeric_limits<float>::infinity());
    EXPECT_TRUE(ended_);
  }
}

TEST_F(CudaPick, ContinuesASequenceAsTheHostDoes) {
  constexpr std::size_t kTokens = 60;
  for (const Use use : {Use::kFastest, Use::kOneAnOperation}) {
    DeviceModel model = make_model(config(2, 64));
    model.ctx().state<TokenKernels>().use = use;
    for (const double temperature : {0.0, 0.5, 1.0}) {
      SCOPED_TRACE(fmt::format("temperature {}", temperature));
      Sampler sampler({.temperature = temperature}, range(7, kVocabulary - 5));
      std::optional<TokenId> end;
      for (int run = 0; run < 2; ++run) {  // to as many tokens as are wanted, then to an end
        const HostContinued expected = continue_on_host(model, sampler, 1, kTokens, end);
        SequenceReader reader(model.ctx(), model.gpt(), kTokens + 1);
        reader.pick_by(sampler, end);
        std::vector<TokenId> tokens;
        TokenId token = 1;
        while (tokens.size() < kTokens && (tokens.empty() || token != end)) {
          token = reader.next(token, static_cast<std::int64_t>(kTokens - tokens.size()));
          tokens.push_back(token);
        }
        EXPECT_EQ(tokens, expected.tokens);
        EXPECT_EQ(reader.state().seen, expected.seen);
        EXPECT_EQ(phases_of(reader), expected.state);
        end = expected.tokens[kTokens / 2];
      }
    }
  }
}

TEST_F(CudaPick, GoesOnAfterTheEnd) {
  DeviceModel model = make_model(config(2, 64));
  Sampler sampler({.temperature = 1.0}, range(0, kVocabulary));
  const HostContinued whole = continue_on_host(model, sampler, 1, 40, std::nullopt);
  const TokenId end = whole.tokens[10];
  SequenceReader reader(model.ctx(), model.gpt(), 41);
  reader.pick_by(sampler, end);
  std::vector<TokenId> tokens;
  for (TokenId token = 1; tokens.size() < 40; tokens.push_back(token)) {
    token = reader.next(token, static_cast<std::int64_t>(40 - tokens.size()));
  }
  EXPECT_EQ(tokens, whole.tokens);
  EXPECT_EQ(phases_of(reader), whole.state);
}

TEST_F(CudaPick, RefusesABrokenModelAsTheSamplerDoes) {
  DeviceModel model = make_model(config(2, 64));
  model.change_parameters([](const Parameter& parameter, std::vector<float>& values) {
    if (parameter.spec.name == "block.1.position.bias") {
      values[1] = std::numeric_limits<float>::quiet_NaN();
    }
  });
  Sampler sampler({.temperature = 0.0}, range(7, kVocabulary));
  SequenceReader reader(model.ctx(), model.gpt(), 9);
  reader.pick_by(sampler, std::nullopt);
  EXPECT_THAT(message_of<Error>([&] { reader.next(1, 8); }),
              testing::HasSubstr("the logit of token 7 at place 1 is nan"));
}

}  // namespace
}  // namespace carope::test
