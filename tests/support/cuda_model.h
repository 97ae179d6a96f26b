#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "support/compare.h"
#include "support/cuda_contexts.h"
#include "support/device_model.h"
#include "support/model_cases.h"
#include "support/tokens.h"

// Whole models for the tests that compare a GPU's with the CPU's and with themselves.
namespace carope::test {

/// Every encoding and option, for heads of usual sizes.
inline std::vector<ModelCase> gpu_model_cases() {
  std::vector<ModelCase> cases = model_cases();
  for (ModelCase& c : cases) {
    c.options.erase("base");  // of the few pairs of the models it was chosen for
  }
  return cases;
}

/// In what a model can be compared with the CPU's.
inline std::vector<DType> compute_types(const ModelCase& c) {
  // A gate that differs much from token to token turns roundings into other phases.
  const bool sensitive = c.name == "carope_no_bias";
  return sensitive ? std::vector{DType::kF32} : std::vector{DType::kF32, DType::kBF16};
}

/// Tokens for a model; some targets are not counted, and documents end within tiles and with them.
inline RandomBatch model_batch(const ModelCase& c, const Sequence& seq, std::int64_t vocabulary,
                               std::uint64_t seed = 1) {
  RandomBatch data(seq.batch, seq.length, vocabulary, seed);
  if (c.documents) {
    data.pack({0, 64, 65, 130, 384});
  }
  for (std::size_t n = 0; n < data.targets.size(); n += 7) {
    data.targets[n] = -1;
  }
  return data;
}

/// A model in which every parameter matters, with numbers that bf16 can hold, so that all models
/// start from the same ones. `gates` is how far their weights are moved: the wider a model and the
/// longer its sequences, the less it takes until roundings become other phases.
inline DeviceModel perturbed_model(const GptConfig& config, Context ctx, DType compute,
                                   double gates = 0.02) {
  constexpr double kDeviation = 0.02;
  DeviceModel model(config, std::move(ctx), compute);
  model.gpt().initialise(5);
  model.change_parameters([&](const Parameter& parameter, std::vector<float>& values) {
    const std::string& name = parameter.spec.name;
    const bool gate = name.ends_with(".position.weight");
    const double deviation = gate ? gates : kDeviation;
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] += static_cast<float>(deviation * 1.7 * uniform(name, i));
      values[i] = to_float(to_bf16(values[i]));
    }
  });
  return model;
}

inline bool is_gate(const Parameter& parameter) {
  return parameter.spec.name.find(".position.") != std::string::npos;
}

/// The gradients of all trainable parameters.
inline std::vector<std::vector<float>> gradients_of(const DeviceModel& model) {
  std::vector<std::vector<float>> gradients;
  for (const Parameter& parameter : model.parameters()) {
    if (parameter.gradient) {
      gradients.push_back(read(parameter.gradient));
    }
  }
  return gradients;
}

/// Which of them are of gates.
inline std::vector<bool> gates_of(const DeviceModel& model) {
  std::vector<bool> gates;
  for (const Parameter& parameter : model.parameters()) {
    if (parameter.gradient) {
      gates.push_back(is_gate(parameter));
    }
  }
  return gates;
}

/// Expects a model's gradients to be those of another, and returns how far they are off at most.
inline double expect_same_gradients(const DeviceModel& found, const DeviceModel& expected,
                                    const ModelTolerance& tolerance) {
  double largest = 0.0;
  for (std::size_t i = 0; i < expected.parameters().size(); ++i) {
    const Parameter& parameter = expected.parameters()[i];
    const std::string& name = parameter.spec.name;
    const Tensor& gradient = found.parameters()[i].gradient;
    EXPECT_EQ(static_cast<bool>(gradient), parameter.spec.trainable) << name;
    if (!gradient || !parameter.gradient) {
      continue;
    }
    const double error = relative_error<float, float>(read(gradient), read(parameter.gradient));
    EXPECT_LE(error, is_gate(parameter) ? tolerance.gate_gradient : tolerance.gradient) << name;
    largest = std::max(largest, error);
  }
  return largest;
}

/// Expects as many tensors, of the same bits.
inline void expect_same_bits(const std::vector<std::vector<float>>& found,
                             const std::vector<std::vector<float>>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(same_bits(found[i], expected[i])) << "tensor " << i;
  }
}

/// Tools that watch memory do not see all that the libraries' products write. So this fills a
/// model's memory with NaN, or with other numbers: nothing may depend on it.
inline void expect_no_use_of_what_was_there(DeviceModel& model, RandomBatch& batch,
                                            Activations& memory) {
  const auto results_over = [&](unsigned char filling) {
    const std::vector<unsigned char> bytes(memory.bytes(), filling);
    copy_from_host(memory.embedding.raw(), bytes.data(), bytes.size(), model.ctx().device());
    const double loss = model.loss_and_gradients(batch.view(), memory);
    std::vector<std::vector<float>> results = gradients_of(model);
    results.push_back({static_cast<float>(loss)});
    return results;
  };
  const auto expected = results_over(0);
  expect_same_bits(results_over(0xff), expected);
}

}  // namespace carope::test
