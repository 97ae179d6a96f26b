// What is measured of a gate on text: the frequencies of the rotation, by head and by word.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/random.h"
#include "eval/gate.h"
#include "ops/carope.h"
#include "support/folder.h"
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
  const Carope op{.heads = logits.cols(), .exponent_start = 1};
  const Sequence seq{.batch = logits.dim(0), .length = 1};
  std::vector<float> qkv(static_cast<std::size_t>(logits.size() * 6));
  std::vector<std::uint32_t> carry(static_cast<std::size_t>(logits.size()));
  std::vector<std::uint32_t> phases(carry.size());
  carope::carope(ctx, op, seq, logits, Tensor::of(qkv, {seq.batch, 1, op.heads * 6}),
                 Tensor::of(carry, {seq.batch, 1, op.heads, 1}),
                 Tensor::of(phases, {seq.batch, op.heads, 1}));
  std::vector<double> angles;
  for (const std::uint32_t phase : phases) {
    angles.push_back(phase * 0x1p-32 * 2.0 * std::numbers::pi);
  }
  return angles;
}

TEST_F(Gate, AgreesWithTheFrequenciesOfTheRotation) {
  Gpt model(config_.model);
  model.initialise(1);
  const Philox random(5, 1);
  for (const Parameter& parameter : model.parameters()) {
    if (parameter.spec.name.find("position") != std::string::npos) {
      for (std::int64_t i = 0; i < parameter.value.size(); ++i) {
        parameter.value.f32()[i] +=
            static_cast<float>(0.3 * random.normal(static_cast<std::uint64_t>(i)));
      }
    }
  }
  const auto loader = open_validation(config_, 4);
  const auto gate = measure_gate(ctx_, model, *loader, 64, nullptr);
  ASSERT_TRUE(gate);

  TokenBatch batch;
  const Arena arena = Arena::plan(Device{}, [&](Arena& plan) { batch = loader->place(plan); });
  loader->fill(0, batch);
  Activations a = model.plan(4, 16, Purpose::kTraining);
  model.forward(ctx_, {.batch = 4, .length = 16}, batch.tokens, a);
  for (std::size_t layer = 0; layer < 2; ++layer) {
    const Tensor logits = model.gate_logits(layer, a);
    const std::vector<double> angles = turned_by(ctx_, logits.reshape({64, 1, 2}));
    for (std::size_t head = 0; head < 2; ++head) {
      double sum = 0.0;
      double product = 1.0;
      double highest = 0.0;
      for (std::size_t t = 0; t < 64; ++t) {
        const double f = angles[2 * t + head];
        EXPECT_NEAR(gate->frequencies[layer][head][t], f, 1e-9);
        sum += f / 64.0;
        product *= std::pow(f, 1.0 / 64.0);
        highest = std::max(highest, f);
      }
      const HeadFrequencies& one = gate->gates[2 * layer + head];
      EXPECT_EQ(one.layer, static_cast<std::int64_t>(layer));
      EXPECT_EQ(one.head, static_cast<std::int64_t>(head));
      EXPECT_NEAR(one.mean, sum, 1e-8);
      EXPECT_NEAR(one.highest, highest, 1e-8);
      EXPECT_NEAR(one.base, std::pow(product, -4.0), 1e-4 * one.base);
      EXPECT_GT(one.deviation, 0.01);
    }
  }
  // A token of these 50 is there often enough or not; the means are those of its places.
  const auto long_look = measure_gate(ctx_, model, *loader, 700, nullptr);
  int found = 0;
  for (const HeadFrequencies& head : long_look->gates) {
    ASSERT_FALSE(head.slowest.empty());
    ASSERT_EQ(head.slowest.size(), head.fastest.size());
    EXPECT_LE(head.slowest.size(), 10U);
    EXPECT_LT(head.slowest.front().mean, head.fastest.front().mean);
    for (std::size_t i = 1; i < head.slowest.size(); ++i) {
      EXPECT_LE(head.slowest[i - 1].mean, head.slowest[i].mean);
      EXPECT_GE(head.fastest[i - 1].mean, head.fastest[i].mean);
    }
    EXPECT_GE(head.slowest.front().count, 16);
    // Layer 0 sees the token alone, so it alone explains all, and its f is the same everywhere.
    for (const auto* words : {&head.slowest, &head.fastest}) {
      for (const WordFrequency& each : *words) {
        const auto& passage = long_look->passage;
        const auto at = std::find(passage.begin(), passage.end(), each.word) - passage.begin();
        if (head.layer == 0 && at < static_cast<std::ptrdiff_t>(passage.size())) {
          EXPECT_NEAR(long_look->frequencies[0][static_cast<std::size_t>(head.head)]
                                            [static_cast<std::size_t>(at)],
                      each.mean, 1e-9);
          ++found;
        }
      }
    }
    EXPECT_NEAR(head.token_share, 1.0, head.layer == 0 ? 1e-9 : 0.9);
    EXPECT_LE(head.token_share, 1.0 + 1e-9);
  }
  EXPECT_GT(found, 4);
  ASSERT_EQ(gate->passage.size(), 64U);
  EXPECT_EQ(gate->passage[1], fmt::format(" {}", batch.tokens.data<std::int32_t>()[1]));
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
