#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>

#include "cli/commands.h"
#include "core/cuda.h"
#include "model/config.h"
#include "model/plan.h"
#include "position/registry.h"
#include "report/table.h"
#include "train/run_config.h"

namespace carope {
namespace {

std::int64_t parameters_added(const GptConfig& config, const Encoding& encoding) {
  std::int64_t count = 0;
  for (const ParameterSpec& spec : model_parameters(encoding)) {
    count += spec.shape.size();
  }
  for (const ParameterSpec& spec : layer_parameters(encoding)) {
    count += config.layers * spec.shape.size();
  }
  return count;
}

std::string parts_of(const Encoding& encoding) {
  std::string parts;
  const auto add = [&](const char* part) {
    parts += (parts.empty() ? "" : ", ") + std::string(part);
  };
  if (encoding.additive) {
    add(std::holds_alternative<LearnedPositions>(*encoding.additive) ? "adds trained vectors"
                                                                     : "adds fixed sines");
  }
  if (encoding.rotation) {
    add(gate_of(encoding) != nullptr ? "rotates q and k by a gate" : "rotates q and k");
  }
  if (encoding.bias) {
    add("biases scores");
  }
  return parts.empty() ? "nothing" : parts;
}

void print_encodings(const GptConfig& config) {
  const bool gpu = !cuda::devices().empty();
  const Device device = gpu ? Device{DeviceKind::kCuda, 0} : Device{};
  fmt::print("{} layers, {} heads, width {}, length {}, on {}\n\n", config.layers, config.heads,
             config.width, config.length, gpu ? cuda::devices().front().name : "the CPU");
  Table table({"encoding", "parts", "parameters", "longest input", "state, bytes a layer",
               "rotation in training", "attention in training"});
  std::string options;
  std::vector<std::string> names = encoding_names();
  if (config.encoding.find('+') != std::string::npos) {
    names.push_back(config.encoding);
  }
  for (const std::string& name : names) {
    Options defaults;
    try {
      const Encoding encoding = make_encoding(name, config.shape(), {}, &defaults);
      const Plan plan = make_plan(config, encoding, device, gpu ? DType::kBF16 : DType::kF32,
                                  {.length = config.length});
      const std::int64_t state =
          gate_of(encoding) != nullptr ? 4 * config.key_heads() * encoding.rotation->pairs : 0;
      table.add({name, parts_of(encoding), fmt::to_string(parameters_added(config, encoding)),
                 encoding.max_length ? fmt::to_string(*encoding.max_length) : "any",
                 fmt::to_string(state), rotation_kernels(plan), attention_kernels(plan)});
    } catch (const ConfigError& error) {
      options += fmt::format("  {} does not fit this model: {}\n", name, error.what());
      continue;
    }
    std::vector<std::string> each;
    for (const auto& [key, value] : defaults) {
      each.push_back(fmt::format("{} = {}", key, to_string(value)));
    }
    options += each.empty() ? "" : fmt::format("  {}: {}\n", name, fmt::join(each, ", "));
  }
  fmt::print(
      "{}\nOptions and their defaults, given as position.OPTION:\n\n{}\n"
      "Names joined by + are composed, e.g. rope+alibi; options are then position.rope.base.\n",
      table.text(), options);
}

}  // namespace

void add_encodings(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "encodings",
      "Lists the positional encodings: what each adds, its options, and the kernels that serve it");
  auto path = std::make_shared<std::string>();
  command->add_option(
      "--config", *path,
      "a model's TOML file or a preset, e.g. gpt-tiny; without it, the default model");
  command->callback([path] {
    Settings settings = path->empty() ? Settings{} : load_run_settings(*path);
    print_encodings(read_model(settings));
  });
}

}  // namespace carope
