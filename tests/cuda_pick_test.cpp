// Tokens that are chosen on the GPU, as a sampler on the host would.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "core/cuda.h"
#include "generate/generator.h"
#include "support/cuda_contexts.h"
#include "support/device_model.h"
#include "support/errors.h"

namespace carope::test {
namespace {

constexpr std::int64_t kVocabulary = 300;
constexpr std::size_t kTokens = 60;

class CudaPick : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_gpu()) {
      GTEST_SKIP() << "no GPU is present";
    }
    ctx_.emplace(cuda_context());
  }

  static std::vector<TokenId> range(TokenId first, TokenId last) {
    std::vector<TokenId> ids;
    for (TokenId id = first; id < last; ++id) {
      ids.push_back(id);
    }
    return ids;
  }

  /// A model whose gates differ from token to token.
  static DeviceModel make_model() {
    DeviceModel model(
        {.layers = 3, .heads = 2, .width = 128, .vocabulary = kVocabulary, .length = kTokens},
        cuda_context(), DType::kBF16);
    model.gpt().initialise(5);
    model.change_parameters([](const Parameter& parameter, std::vector<float>& values) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] += static_cast<float>(0.04 * uniform(parameter.spec.name, i));
      }
    });
    return model;
  }

  TokenPick pick(const TokenChoice& choice, const std::vector<float>& logits,
                 double uniform = 0.0) {
    Context& ctx = *ctx_;
    const Memory values(ctx.device(), logits.size() * sizeof(float));
    copy_from_host(values.data(), logits.data(), values.bytes(), ctx.device());
    const std::shared_ptr<void> pinned = cuda::allocate_pinned(sizeof(TokenPick));
    auto* pick = static_cast<TokenPick*>(pinned.get());
    pick->uniform = uniform;
    pick_token(ctx, choice,
               Tensor(values.data(), {{static_cast<std::int64_t>(logits.size())}}, ctx.device()),
               pick);
    wait(ctx);
    return *pick;
  }

  std::optional<Context> ctx_;
};

TEST_F(CudaPick, GreedilyTheFirstOfTheHighest) {
  for (const std::size_t size : {std::size_t{70}, std::size_t{1000}, std::size_t{70001}}) {
    const auto count = static_cast<std::int64_t>(size) - 10;
    const TokenChoice choice{.first = 4, .count = count, .temperature = 0.0};
    std::vector<float> logits(size, -1.0F);
    logits[3] = 9.0F;  // not allowed, nor is the next
    logits[size - 6] = 9.0F;
    EXPECT_EQ(pick(choice, logits).token, 4) << size;
    logits[size - 7] = 2.0F;
    EXPECT_EQ(pick(choice, logits).token, static_cast<std::int32_t>(size) - 7);
    logits[43] = logits[size / 2] = 2.0F;
    EXPECT_EQ(pick(choice, logits).token, std::min(43, static_cast<std::int32_t>(size / 2)));
    logits[40] = logits[41] = 3.0F;
    EXPECT_EQ(pick(choice, logits).token, 40);
    EXPECT_EQ(pick(choice, logits).logit, 3.0F);
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
  }
}

TEST_F(CudaPick, ContinuesASequenceAsTheHostDoes) {
  DeviceModel model = make_model();
  for (const double temperature : {0.0, 0.5, 1.0}) {
    SCOPED_TRACE(fmt::format("temperature {}", temperature));
    Sampler sampler({.temperature = temperature}, range(7, kVocabulary - 5));
    SequenceReader on_host(model.ctx(), model.gpt(), kTokens);
    SequenceReader on_gpu(model.ctx(), model.gpt(), kTokens);
    on_gpu.pick_by(sampler);
    TokenId token = 1;
    for (std::size_t n = 0; n < kTokens; ++n) {
      on_host.read({&token, 1});
      const TokenId picked = on_gpu.next(token);
      token = sampler.pick(on_host.logits(), on_host.seen());
      ASSERT_EQ(picked, token) << n;
    }
    EXPECT_EQ(on_gpu.seen(), on_host.seen());
  }
}

TEST_F(CudaPick, RefusesABrokenModelAsTheSamplerDoes) {
  DeviceModel model = make_model();
  model.change_parameters([](const Parameter& parameter, std::vector<float>& values) {
    if (parameter.spec.name == "block.1.position.bias") {
      values[1] = std::numeric_limits<float>::quiet_NaN();
    }
  });
  Sampler sampler({.temperature = 0.0}, range(7, kVocabulary));
  SequenceReader reader(model.ctx(), model.gpt(), 9);
  reader.pick_by(sampler);
  EXPECT_THAT(message_of<Error>([&] { reader.next(1); }),
              testing::HasSubstr("the logit of token 7 at place 1 is nan"));
}

}  // namespace
}  // namespace carope::test
