// What is measured of a gate on text: the frequencies of the rotation, by head and by word.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numbers>
#include <numeric>

#include "eval/gate.h"
#include "ops/rotation.h"
#include "support/folder.h"
#include "support/tokens.h"
#include "support/training.h"
#include "train/run_data.h"

namespace carope::test {
namespace {

/// A model whose gate can be set, on the tokens of write_training_data.
class Gate : public testing::Test {
 protected:
  Gate() {
    write_training_data(folder_ / "data");
    Settings settings;
    settings["model"] = {{"layers", std::int64_t{2}},
                         {"heads", std::int64_t{2}},
                         {"width", std::int64_t{16}},
                         {"length", std::int64_t{16}},
                         {"vocabulary", std::int64_t{50}}};
    settings["position"]["base"] = 5000.0;
    settings["data"]["path"] = (folder_ / "data").string();
    settings["train"] = {{"batch_tokens", std::int64_t{64}}, {"micro_batch", std::int64_t{4}}};
    config_ = read_run(settings);
  }

  TemporaryFolder folder_;
  RunConfig config_;
  Context ctx_ = Context::cpu(2);
};

TEST_F(Gate, IsRopesAtTheStart) {
  Gpt model(config_.model);
  model.initialise(1);
  const auto gate = measure_gate(ctx_, model, *open_validation(config_, 4), 200, nullptr);
  ASSERT_TRUE(gate);
  EXPECT_EQ(gate->tokens, 256);
  ASSERT_EQ(gate->gates.size(), 4U);
  const double f = std::pow(5000.0, -2.0 / 8.0);  // 8 channels a head
  for (const HeadFrequencies& head : gate->gates) {
    EXPECT_NEAR(head.mean, f, 1e-7);
    EXPECT_NEAR(head.base, 5000.0, 0.01);
    EXPECT_LT(head.deviation, 1e-12);
    EXPECT_EQ(head.counts[static_cast<std::size_t>(f * 40)], 256);
  }
}

/// The angles by which tokens that are a document each turn a pair with the exponent 1.
std::vector<double> turned_by(Context& ctx, const Tensor& logits) {
  const std::int64_t heads = logits.cols();
  const Sequence seq{.batch = logits.dim(0), .length = 1};
  std::vector<float> qkv(static_cast<std::size_t>(logits.size() * 6));
  std::vector<std::uint32_t> carry(static_cast<std::size_t>(logits.size()));
  std::vector<std::uint32_t> phases(carry.size());
  const QkvHeads parts = split_qkv(Tensor::of(qkv, {seq.batch, 1, heads * 6}), seq, heads, heads);
  rotate(ctx,
         {.q = parts.q,
          .k = parts.k,
          .pairs = 1,
          .logits = logits,
          .exponent_start = 1,
          .carry = Tensor::of(carry, {seq.batch, 1, heads, 1}),
          .state = Tensor::of(phases, {seq.batch, heads, 1})},
         seq);
  std::vector<double> angles;
  for (const std::uint32_t phase : phases) {
    angles.push_back(phase * 0x1p-32 * 2.0 * std::numbers::pi);
  }
  return angles;
}

/// A text, and how its tokens turn a model's pairs, by layer and head.
struct Turned {
  std::vector<std::int32_t> tokens{};
  std::vector<std::vector<std::vector<double>>> f{2, std::vector<std::vector<double>>(2)};
};

Turned turn(Context& ctx, const Gpt& model, const Loader& loader, std::int64_t batches) {
  Turned all;
  TokenBatch batch;
  const Arena arena = Arena::plan(Device{}, [&](Arena& plan) { batch = loader.place(plan); });
  Activations a = model.plan({.batch = 4, .length = 16, .purpose = Purpose::kTraining});
  for (std::int64_t i = 0; i < batches; ++i) {
    loader.fill(i, batch);
    const auto* tokens = batch.tokens.data<std::int32_t>();
    all.tokens.insert(all.tokens.end(), tokens, tokens + 64);
    model.forward(ctx, {.batch = 4, .length = 16}, batch.tokens, a);
    for (std::size_t layer = 0; layer < 2; ++layer) {
      const auto angles = turned_by(ctx, a.blocks[layer].attention.gate_logits.reshape({64, 1, 2}));
      for (std::size_t j = 0; j < angles.size(); ++j) {
        all.f[layer][j % 2].push_back(angles[j]);
      }
    }
  }
  return all;
}

double mean_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

/// The sum of squares around the mean.
double squares_of(const std::vector<double>& values) {
  const double mean = mean_of(values);
  return std::accumulate(values.begin(), values.end(), 0.0, [&](double sum, double value) {
    return sum + (value - mean) * (value - mean);
  });
}

TEST_F(Gate, AgreesWithTheFrequenciesOfTheRotation) {
  Gpt model(config_.model);
  model.initialise(1);
  perturb(model, 0.3);
  const auto loader = open_validation(config_, 4);
  const auto gate = measure_gate(ctx_, model, *loader, 64, nullptr);
  ASSERT_TRUE(gate);
  ASSERT_EQ(gate->gates.size(), 4U);
  const Turned turned = turn(ctx_, model, *loader, 1);
  for (std::size_t i = 0; i < 4; ++i) {
    const HeadFrequencies& head = gate->gates[i];
    EXPECT_EQ(head.layer, static_cast<std::int64_t>(i / 2));
    EXPECT_EQ(head.head, static_cast<std::int64_t>(i % 2));
    std::vector<double> f = turned.f[i / 2][i % 2];
    double product = 1.0;
    for (std::size_t t = 0; t < 64; ++t) {
      EXPECT_NEAR(gate->frequencies[i / 2][i % 2][t], f[t], 1e-9);
      product *= std::pow(f[t], 1.0 / 64.0);
    }
    EXPECT_NEAR(head.mean, mean_of(f), 1e-8);
    EXPECT_NEAR(head.deviation, std::sqrt(squares_of(f) / 64.0), 1e-8);
    EXPECT_NEAR(head.base, std::pow(product, -4.0), 1e-4 * head.base);
    std::sort(f.begin(), f.end());
    EXPECT_NEAR(head.lowest, f.front(), 1e-8);
    EXPECT_NEAR(head.highest, f.back(), 1e-8);
    // The nearest to 5, 25, 50, 75 and 95 % of the way from the first of 64 to the last.
    constexpr std::array<std::size_t, 5> kPlaces{3, 16, 32, 47, 60};
    for (std::size_t q = 0; q < kPlaces.size(); ++q) {
      EXPECT_NEAR(head.quantiles[q], f[kPlaces[q]], 1e-8) << q;
    }
  }
  ASSERT_EQ(gate->passage.size(), 64U);
  EXPECT_EQ(gate->passage[1], fmt::format(" {}", turned.tokens[1]));
}

TEST_F(Gate, KnowsWhichTokensTurnTheClock) {
  Gpt model(config_.model);
  model.initialise(1);
  perturb(model, 0.3);
  const auto loader = open_validation(config_, 4);
  const auto gate = measure_gate(ctx_, model, *loader, 700, nullptr);
  ASSERT_TRUE(gate);
  ASSERT_EQ(gate->tokens, 640);  // of 699, in whole batches
  const Turned turned = turn(ctx_, model, *loader, 10);
  for (const HeadFrequencies& head : gate->gates) {
    const auto& f =
        turned.f[static_cast<std::size_t>(head.layer)][static_cast<std::size_t>(head.head)];
    std::map<std::string, std::vector<double>> words;
    for (std::size_t i = 0; i < f.size(); ++i) {
      words[fmt::format(" {}", turned.tokens[i])].push_back(f[i]);
    }
    std::erase_if(words, [](const auto& word) { return word.second.size() < 16; });
    std::vector<double> means, all;
    double within = 0.0;
    for (const auto& [word, values] : words) {
      means.push_back(mean_of(values));
      all.insert(all.end(), values.begin(), values.end());
      within += squares_of(values);
    }
    // Layer 0 sees the token alone, so it alone explains all there.
    EXPECT_NEAR(head.token_share, 1.0 - within / squares_of(all), 1e-6);
    if (head.layer == 0) {
      EXPECT_NEAR(head.token_share, 1.0, 1e-9);
    } else {
      EXPECT_LT(head.token_share, 0.9);
    }
    std::sort(means.begin(), means.end());
    ASSERT_EQ(head.slowest.size(), std::min<std::size_t>(10, means.size() / 2));
    ASSERT_EQ(head.slowest.size(), head.fastest.size());
    for (std::size_t i = 0; i < head.slowest.size(); ++i) {
      EXPECT_NEAR(head.slowest[i].mean, means[i], 1e-8);
      EXPECT_NEAR(head.fastest[i].mean, means[means.size() - 1 - i], 1e-8);
      for (const WordFrequency& each : {head.slowest[i], head.fastest[i]}) {
        ASSERT_TRUE(words.contains(each.word)) << each.word;
        EXPECT_EQ(each.count, static_cast<std::int64_t>(words[each.word].size()));
        EXPECT_NEAR(each.mean, mean_of(words[each.word]), 1e-8);
      }
    }
  }
}

TEST_F(Gate, IsNotThereInOtherEncodings) {
  config_.model.encoding = "rope";
  config_.model.encoding_options = {};
  Gpt model(config_.model);
  model.initialise(1);
  EXPECT_FALSE(measure_gate(ctx_, model, *open_validation(config_, 4), 64, nullptr));
}

}  // namespace
}  // namespace carope::test
