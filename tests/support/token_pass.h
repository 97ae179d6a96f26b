#pragma once

#include <gtest/gtest.h>

#include <span>
#include <string>
#include <vector>

#include "core/cuda.h"
#include "generate/generator.h"
#include "support/cuda_contexts.h"
#include "support/device_model.h"
#include "support/model_cases.h"
#include "support/tokens.h"

// Models whose tokens pass through all layers in one kernel, and what comes of reading with them.
namespace carope::test {

using Use = TokenKernels::Use;

/// Both ways round the same numbers to bf16. Sums in another order move few of them, by one
/// rounding: less than the CPU engine and a model in bf16 may differ by.
inline constexpr double kTolerance = 2e-2;
inline constexpr std::int64_t kLayers = 3;
inline constexpr std::int64_t kVocabulary = 300;
inline constexpr std::size_t kSteps =
    20;  // the first as it is, the second recorded, the others replayed
inline constexpr std::size_t kLongestPrompt = 700;

inline GptConfig token_pass_config(const ModelCase& model, std::int64_t heads,
                                   std::int64_t head_dim) {
  return {.layers = kLayers,
          .heads = heads,
          .width = heads * head_dim,
          .vocabulary = kVocabulary,
          .length = kLongestPrompt + kSteps,
          .encoding = model.encoding,
          .encoding_options = model.options};
}

/// A model in which every kind of parameter matters: scores differ from key to key, gates from
/// token to token.
inline DeviceModel make_model(const GptConfig& config) {
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

inline std::vector<std::uint32_t> read_words(const Tensor& tensor) {
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

inline Decoded decode(DeviceModel& model, Use use, std::span<const TokenId> tokens,
                      std::size_t prompt) {
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

inline bool gpu_serves() {
  constexpr int kHopper = 9;  // the first with the copies that the kernel is made of
  return has_gpu() && cuda::devices().front().compute_major >= kHopper;
}

class TokenPassOnGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (!gpu_serves()) {
      GTEST_SKIP() << "no GPU is present that has copy rings";
    }
  }

  static GptConfig config(std::int64_t heads, std::int64_t head_dim) {
    return token_pass_config({"carope", "carope"}, heads, head_dim);
  }
};

}  // namespace carope::test
