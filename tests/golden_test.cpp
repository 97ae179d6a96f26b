// The model against PyTorch: logits, loss, every gradient and ten AdamW steps.
// tests/golden/make_golden.py produced the numbers, in fp64.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "support/compare.h"
#include "support/cuda_contexts.h"
#include "support/device_model.h"
#include "train/optimizer.h"

namespace carope::test {
namespace {

using Json = nlohmann::json;

const Tolerance kTolerance = tolerance(DType::kF32);

/// The relative error of `values` against a list of numbers in the file.
double error_against(std::span<const float> values, const Json& numbers) {
  const auto expected = numbers.get<std::vector<double>>();
  return relative_error<float, double>(values, expected);
}

/// The 32 bits that the script's hash gives for index i of a name.
std::uint32_t hashed(const std::string& name, std::uint32_t i) {
  std::uint32_t x = 0x811C9DC5;
  for (const char c : name) {
    x = (x ^ static_cast<unsigned char>(c)) * 0x01000193;
  }
  x ^= i * 0x9E3779B9;
  x ^= x >> 16;
  x *= 0x7FEB352D;
  x ^= x >> 15;
  x *= 0x846CA68B;
  x ^= x >> 16;
  return x;
}

/// Where a parameter's values lie, as in the script.
Init range_of(const std::string& name, std::int64_t head_dim) {
  const auto ends_with = [&](const char* suffix) { return name.ends_with(suffix); };
  if (ends_with("norm.gain")) {
    return {.mean = 1.0, .deviation = 0.1};
  }
  if (ends_with(".position.weight")) {
    return {.mean = 0.0, .deviation = 0.05};
  }
  if (ends_with(".position.bias")) {
    const double turn = std::pow(10000.0, 2.0 / static_cast<double>(head_dim));
    return {.mean = std::log(std::expm1(turn - 1.0)), .deviation = 0.2};
  }
  return {.mean = 0.0, .deviation = ends_with(".bias") ? 0.1 : 0.25};
}

OptionValue option_value(const Json& value) {
  if (value.is_boolean()) {
    return value.get<bool>();
  }
  if (value.is_number_integer()) {
    return value.get<std::int64_t>();
  }
  if (value.is_number()) {
    return value.get<double>();
  }
  return value.get<std::string>();
}

/// The name of a golden run, and where to repeat it.
class Golden : public testing::TestWithParam<std::tuple<std::string, DeviceKind>> {
 protected:
  void SetUp() override {
    const auto& [name, device] = GetParam();
    if (device == DeviceKind::kCuda && !has_gpu()) {
      GTEST_SKIP() << "no GPU is present";
    }
    const auto path = std::filesystem::path(CAROPE_SOURCE_DIR) / "tests/golden" / (name + ".json");
    std::ifstream file(path);
    ASSERT_TRUE(file) << path;
    golden_ = Json::parse(file);
    const Json& config = golden_["config"];
    config_.layers = config["layers"];
    config_.heads = config["heads"];
    config_.width = config["width"];
    config_.vocabulary = config["vocabulary"];
    config_.length = config["length"];
    config_.encoding = config["encoding"];
    for (const auto& [key, value] : config["options"].items()) {
      config_.encoding_options[key] = option_value(value);
    }
    make_batch(config);
  }

  void make_batch(const Json& config) {
    const std::int64_t batch = config["batch"];
    const std::int64_t length = config["tokens"];
    for (std::int64_t b = 0; b < batch; ++b) {
      for (std::int64_t t = 0; t <= length; ++t) {
        const auto index = static_cast<std::uint32_t>(b * (length + 1) + t);
        const auto token = static_cast<std::int32_t>(hashed("tokens", index) % config_.vocabulary);
        if (t < length) {
          tokens_.push_back(token);
        }
        if (t > 0) {
          targets_.push_back(token);
        }
      }
    }
    batch_.seq = {.batch = batch, .length = length};
    batch_.tokens = Tensor::of(tokens_, {batch, length});
    batch_.targets = Tensor::of(targets_, {batch, length});
    if (!config["document_starts"].is_null()) {
      for (const Json& starts : config["document_starts"]) {
        std::int32_t start = 0;
        for (std::int32_t t = 0; t < length; ++t) {
          for (const Json& boundary : starts) {
            start = boundary == t ? t : start;
          }
          document_start_.push_back(start);
        }
      }
      batch_.seq.document_start = Tensor::of(document_start_, {batch, length});
    }
  }

  DeviceModel make_model() const {
    const bool cuda = std::get<DeviceKind>(GetParam()) == DeviceKind::kCuda;
    DeviceModel model(config_, cuda ? cuda_context() : Context::cpu(2));
    model.change_parameters([&](const Parameter& parameter, std::vector<float>& values) {
      const Init range = range_of(parameter.spec.name, config_.width / config_.heads);
      for (std::size_t i = 0; i < values.size(); ++i) {
        const double unit =
            (hashed(parameter.spec.name, static_cast<std::uint32_t>(i)) >> 8) * 0x1p-23 - 1.0;
        values[i] = static_cast<float>(range.mean + range.deviation * unit);
      }
    });
    return model;
  }

  Activations plan(DeviceModel& model, Purpose purpose) const {
    return model.gpt().plan({.batch = batch_.seq.batch,
                             .length = batch_.seq.length,
                             .purpose = purpose,
                             .documents = static_cast<bool>(batch_.seq.document_start)});
  }

  Json golden_;
  GptConfig config_;
  std::vector<std::int32_t> tokens_, targets_, document_start_;
  Batch batch_;
};

TEST_P(Golden, LogitsAndLoss) {
  DeviceModel model = make_model();
  Activations a = plan(model, Purpose::kEvaluation);
  EXPECT_NEAR(model.loss(batch_, a), golden_["loss"].get<double>(), kTolerance.loss);
  EXPECT_LT(error_against(model.logits(batch_, a), golden_["logits"]), kTolerance.forward);
}

TEST_P(Golden, Gradients) {
  DeviceModel model = make_model();
  Activations a = plan(model, Purpose::kTraining);
  model.loss_and_gradients(batch_, a);
  const Json& gradients = golden_["gradients"];
  for (const Parameter& parameter : model.parameters()) {
    ASSERT_EQ(parameter.spec.trainable, gradients.contains(parameter.spec.name))
        << parameter.spec.name;
    if (parameter.spec.trainable) {
      EXPECT_LT(error_against(read(parameter.gradient), gradients[parameter.spec.name]),
                kTolerance.gradient)
          << parameter.spec.name;
    }
  }
}

TEST_P(Golden, TenSteps) {
  DeviceModel model = make_model();
  Activations a = plan(model, Purpose::kTraining);
  const Json& recipe = golden_["optimizer"];
  Optimizer optimizer(model.parameters(), {.beta1 = recipe["beta1"],
                                           .beta2 = recipe["beta2"],
                                           .epsilon = recipe["epsilon"],
                                           .decay = recipe["decay"],
                                           .clip = recipe["clip"]});
  ASSERT_EQ(golden_["step_losses"].size(), 10U);
  for (std::size_t step = 0; step < 10; ++step) {
    EXPECT_NEAR(model.loss_and_gradients(batch_, a), golden_["step_losses"][step].get<double>(),
                kTolerance.loss)
        << "step " << step;
    const double norm = golden_["step_norms"][step];
    EXPECT_NEAR(optimizer.step(model.ctx(), recipe["learning_rate"]), norm,
                kTolerance.gradient * norm)
        << "step " << step;
  }
  for (const Parameter& parameter : model.parameters()) {
    EXPECT_LT(error_against(read(parameter.value), golden_["final"][parameter.spec.name]),
              kTolerance.trained)
        << parameter.spec.name;
  }
}

const auto kRuns =
    testing::Values("alibi", "carope", "carope_documents", "carope_frozen",
                    "carope_interleaved_embedding", "carope_no_bias", "learnable",
                    "learnable_documents", "none", "rope", "rope_interleaved", "sinusoidal");
const auto kName = [](const auto& info) { return std::get<std::string>(info.param); };

INSTANTIATE_TEST_SUITE_P(PyTorch, Golden,
                         testing::Combine(kRuns, testing::Values(DeviceKind::kCpu)), kName);
INSTANTIATE_TEST_SUITE_P(PyTorchOnCuda, Golden,
                         testing::Combine(kRuns, testing::Values(DeviceKind::kCuda)), kName);

}  // namespace
}  // namespace carope::test
