// A token's way through all layers in one kernel, against the same model with a kernel for each
// operation.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "support/compare.h"
#include "support/token_pass.h"

namespace carope::test {
namespace {

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
      params.push_back({c, 3, 64});    // half of a warp's columns
      params.push_back({c, 16, 128});  // the widest, two rounds of columns
    }
  }
  return params;
}

class CudaTokenPass : public TokenPassOnGpu, public testing::WithParamInterface<Param> {};

TEST_P(CudaTokenPass, EqualsOneKernelForEachOperation) {
  DeviceModel model =
      make_model(token_pass_config(GetParam().model, GetParam().heads, GetParam().head_dim));
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

class CudaTokenPassLimits : public TokenPassOnGpu {
 protected:
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

}  // namespace
}  // namespace carope::test
