// A token's way through all layers in one kernel, against the same model with a kernel for each
// operation.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/cuda.h"
#include "generate/generator.h"
#include "support/compare.h"
#include "support/cuda_contexts.h"
#include "support/device_model.h"
#include "support/errors.h"
#include "support/model_cases.h"
#include "support/tokens.h"

namespace carope::test {
namespace {

using Use = TokenKernels::Use;

/// Both ways round the same numbers to bf16. Sums in another order move few of them, by one
/// rounding: less than the CPU engine and a model in bf16 may differ by.
constexpr double kTolerance = 2e-2;
constexpr std::int64_t kLayers = 3;
constexpr std::int64_t kVocabulary = 300;
constexpr std::size_t kSteps = 20;  // the first as it is, the second recorded, the others replayed
constexpr std::size_t kLongestPrompt = 700;

struct Param {
  ModelCase model;
  std::int64_t heads, head_dim;

  std::string name() const { return fmt::format("{}_H{}_D{}", model.name, heads, head_dim); }
};

void PrintTo(const Param& param, std::ostream* out) { *out << param.name(); }

std::vector<Param> params() {
  std::vector<Param> params;
  for (ModelCase c : model_cases()) {
    // A gate that differs much from token to token turns roundings into other phases.
    if (c.documents || c.name == "carope_no_bias") {
      continue;
    }
    c.options.erase("base");  // of the few pairs of the models it was chosen for
    params.push_back({c, 2, 64});
    params.push_back({c, 12, 64});
    params.push_back({c, 4, 32});
    if (c.name == "carope" || c.name == "rope_interleaved") {
      params.push_back({c, 9, 128});
      params.push_back({c, 8, 64});  // a kernel of its own, as 12 heads have
      params.push_back({c, 16, 64});
    }
  }
  return params;
}

GptConfig config_of(const Param& param) {
  return {.layers = kLayers,
          .heads = param.heads,
          .width = param.heads * param.head_dim,
          .vocabulary = kVocabulary,
          .length = kLongestPrompt + kSteps,
          .encoding = param.model.encoding,
          .encoding_options = param.model.options};
}

/// A model in which every kind of parameter matters: scores differ from key to key, gates from
/// token to token.
DeviceModel make_model(const GptConfig& config) {
  DeviceModel model(config, cuda_context(), DType::kBF16);
  model.gpt().initialise(5);
  model.change_parameters([](const Parameter& parameter, std::vector<float>& values) {
    const bool matrix = parameter.spec.init.deviation > 0.0;
    const std::string& name = parameter.spec.name;
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] =
          matrix ? 2.0F * values[i] : values[i] + static_cast<float>(0.04 * uniform(name, i));
    }
  });
  return model;
}

std::vector<std::uint32_t> read_words(const Tensor& tensor) {
  std::vector<std::uint32_t> words(static_cast<std::size_t>(tensor.size()));
  copy_to_host(words.data(), tensor.raw(), tensor.bytes(), tensor.device());
  return words;
}

/// What reading a prompt at once, and then token by token, leaves.
struct Decoded {
  std::vector<std::vector<float>> logits;         // of each step
  std::vector<std::vector<float>> keys, values;   // of each layer, of the single tokens
  std::vector<std::vector<std::uint32_t>> state;  // of each layer
};

Decoded decode(DeviceModel& model, Use use, std::span<const TokenId> tokens, std::size_t prompt) {
  model.ctx().state<TokenKernels>().use = use;
  SequenceReader reader(model.ctx(), model.gpt(), static_cast<std::int64_t>(tokens.size()));
  reader.read(tokens.first(prompt));
  Decoded decoded;
  for (std::size_t n = prompt; n < tokens.size(); ++n) {
    reader.read(tokens.subspan(n, 1));
    decoded.logits.emplace_back(reader.logits().begin(), reader.logits().end());
  }
  const std::int64_t width = model.gpt().config().width;
  const auto new_rows = [&](const Tensor& cache) {
    const std::vector<float> all = read(cache);
    return std::vector(all.begin() + static_cast<std::int64_t>(prompt) * width, all.end());
  };
  for (const DecodeState::Layer& layer : reader.state().layers) {
    decoded.keys.push_back(new_rows(layer.cache.keys));
    decoded.values.push_back(new_rows(layer.cache.values));
    decoded.state.push_back(layer.position.empty() ? std::vector<std::uint32_t>{}
                                                   : read_words(layer.position[0]));
  }
  return decoded;
}

bool gpu_serves() {
  constexpr int kHopper = 9;  // the first with the copies that the kernel is made of
  return has_gpu() && cuda::devices().front().compute_major >= kHopper;
}

class CudaTokenPass : public testing::TestWithParam<Param> {
 protected:
  void SetUp() override {
    if (!gpu_serves()) {
      GTEST_SKIP() << "no GPU is present that has copy rings";
    }
  }
};

TEST_P(CudaTokenPass, EqualsOneKernelForEachOperation) {
  DeviceModel model = make_model(config_of(GetParam()));
  DecodeState state = model.gpt().plan_decoding(1, 1);
  ASSERT_TRUE(model.gpt().plan_token_pass(model.ctx(), state)) << "no kernel serves this model";
  const bool exact = model.gpt().encoding().reads_embedding();
  for (const std::size_t prompt :
       {std::size_t{1}, std::size_t{5}, std::size_t{130}, kLongestPrompt}) {
    SCOPED_TRACE(fmt::format("after a prompt of {}", prompt));
    const RandomBatch batch(1, static_cast<std::int64_t>(prompt + kSteps), kVocabulary);
    const std::vector<TokenId> tokens(batch.tokens.begin(), batch.tokens.end());
    const Decoded expected = decode(model, Use::kOneAnOperation, tokens, prompt);
    const Decoded found = decode(model, Use::kFastest, tokens, prompt);
    for (std::size_t step = 0; step < kSteps; ++step) {
      ASSERT_LE((relative_error<float, float>(found.logits[step], expected.logits[step])),
                kTolerance)
          << "step " << step;
    }
    for (std::size_t layer = 0; layer < kLayers; ++layer) {
      SCOPED_TRACE(fmt::format("layer {}", layer));
      EXPECT_LE((relative_error<float, float>(found.keys[layer], expected.keys[layer])),
                kTolerance);
      EXPECT_LE((relative_error<float, float>(found.values[layer], expected.values[layer])),
                kTolerance);
      ASSERT_EQ(found.state[layer].size(), expected.state[layer].size());
      if (layer == 0 || exact) {  // what the gate reads there are the same bits
        EXPECT_EQ(found.state[layer], expected.state[layer]);
        continue;
      }
      double turns = 0.0;
      for (std::size_t i = 0; i < found.state[layer].size(); ++i) {
        const auto difference =
            static_cast<std::int32_t>(found.state[layer][i] - expected.state[layer][i]);
        turns = std::max(turns, std::abs(difference * 0x1p-32));
      }
      EXPECT_LE(turns, 1e-2);
    }
    const Decoded again = decode(model, Use::kFastest, tokens, prompt);
    EXPECT_TRUE(same_bits(again.logits.back(), found.logits.back()));
    EXPECT_EQ(again.state, found.state);
  }
}

INSTANTIATE_TEST_SUITE_P(Encodings, CudaTokenPass, testing::ValuesIn(params()),
                         [](const auto& info) { return info.param.name(); });

class CudaTokenPassLimits : public testing::Test {
 protected:
  void SetUp() override {
    if (!gpu_serves()) {
      GTEST_SKIP() << "no GPU is present that has copy rings";
    }
  }

  static GptConfig config(std::int64_t heads, std::int64_t head_dim) {
    return config_of({{"carope", "carope"}, heads, head_dim});
  }
  static bool serves(const GptConfig& config, DType compute = DType::kBF16,
                     std::int64_t batch = 1) {
    DeviceModel model(config, cuda_context(), compute);
    DecodeState state = model.gpt().plan_decoding(batch, 1);
    return model.gpt().plan_token_pass(model.ctx(), state) != nullptr;
  }
};

TEST_F(CudaTokenPassLimits, WhatItDoesNotServeIsRefused) {
  EXPECT_TRUE(serves(config(2, 64)));
  EXPECT_FALSE(serves(config(2, 64), DType::kF32));
  EXPECT_FALSE(serves(config(2, 64), DType::kBF16, 2)) << "two sequences";
  EXPECT_FALSE(serves(config(16, 12))) << "heads of 12";
  EXPECT_FALSE(serves(config(3, 32))) << "a width of 96";
  EXPECT_FALSE(serves(config(17, 128))) << "a width past 2048";
}

TEST_F(CudaTokenPassLimits, TestsCanAskForOneKernelForEachOperation) {
  DeviceModel model = make_model(config(2, 64));
  DecodeState state = model.gpt().plan_decoding(1, 1);
  model.ctx().state<TokenKernels>().use = Use::kOneAnOperation;
  EXPECT_FALSE(model.gpt().plan_token_pass(model.ctx(), state));
}

TEST_F(CudaTokenPassLimits, ABrokenGateReachesTheLogits) {
  DeviceModel model = make_model(config(2, 64));
  model.change_parameters([](const Parameter& parameter, std::vector<float>& values) {
    if (parameter.spec.name == "block.1.position.bias") {
      values[1] = std::numeric_limits<float>::quiet_NaN();
    }
  });
  const std::vector<TokenId> tokens{1, 2, 3};
  EXPECT_TRUE(std::isnan(decode(model, Use::kFastest, tokens, 1).logits.back()[0]));
}

/// Tokens in a row, in one kernel each.
class CudaTokenPassInARow : public CudaTokenPassLimits {
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

TEST_F(CudaTokenPassInARow, ManyTokensAndLongContexts) {
  // Up to 4000 keys: parts of one round of keys, parts of several, and the last round of a part.
  for (const char* encoding : {"rope", "carope"}) {
    GptConfig shape = config_of({{encoding, encoding}, 12, 64});
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

TEST_F(CudaTokenPassInARow, TwoSequencesInTurns) {
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

TEST_F(CudaTokenPassInARow, ASequenceThatBeginsAnewSeesNothingOfTheOneBefore) {
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

class CudaPick : public CudaTokenPassLimits {
 protected:
  static std::vector<TokenId> range(TokenId first, TokenId last) {
    std::vector<TokenId> ids;
    for (TokenId id = first; id < last; ++id) {
      ids.push_back(id);
    }
    return ids;
  }

  TokenPick pick(const TokenChoice& choice, const std::vector<float>& logits,
                 double uniform = 0.0) {
    const Memory values(ctx_.device(), logits.size() * sizeof(float));
    const Memory next(ctx_.device(), sizeof(NextToken));
    copy_from_host(values.data(), logits.data(), values.bytes(), ctx_.device());
    NextToken token{.token = 3, .offset = 6, .ended = 0};
    copy_from_host(next.data(), &token, sizeof(token), ctx_.device());
    const std::shared_ptr<void> pinned = cuda::allocate_pinned(4 * sizeof(TokenPick));
    auto* picks = static_cast<TokenPick*>(pinned.get());
    picks[2].uniform = uniform;
    pick_token(ctx_, choice,
               Tensor(values.data(), {{static_cast<std::int64_t>(logits.size())}}, ctx_.device()),
               Tensor(next.data(), {{3}, DType::kI32}, ctx_.device()), picks, 4);
    wait(ctx_);
    copy_to_host(&token, next.data(), sizeof(token), ctx_.device());
    EXPECT_EQ(token.offset, 7);
    EXPECT_EQ(token.token, picks[2].token < 0 ? 3 : picks[2].token);
    ended_ = token.ended != 0;
    return picks[2];
  }

  Context ctx_ = cuda_context();
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
