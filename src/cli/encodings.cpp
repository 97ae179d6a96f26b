#include <fmt/format.h>

#include <memory>

#include "cli/commands.h"
#include "model/config.h"
#include "model/weights.h"
#include "position/registry.h"

namespace carope {
namespace {

std::string parameters_added(const GptConfig& config, const PositionEncoding& encoding) {
  std::int64_t count = 0;
  for (const ParameterSpec& spec : encoding.parameters()) {
    count += spec.shape.size();
  }
  for (const ParameterSpec& spec : encoding.layer_parameters()) {
    count += config.layers * spec.shape.size();
  }
  return fmt::format("{}", count);
}

}  // namespace

void add_encodings(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "encodings", "Lists the positional encodings and what each adds to a model");
  auto path = std::make_shared<std::string>();
  command->add_option("--config", *path, "a model's TOML file; without it, the default model");
  command->callback([path] {
    const GptConfig config = path->empty() ? GptConfig{} : load_config(*path);
    fmt::print("{} layers, {} heads, width {}, length {}\n\n", config.layers, config.heads,
               config.width, config.length);
    fmt::print("{:<12} {:>12} {:>16} {:>18}\n", "encoding", "parameters", "longest input",
               "decode state");
    for (const std::string& name : encoding_names()) {
      const auto encoding = make_encoding(name, config.shape(), {}, {});
      const auto bound = encoding->max_length();
      std::size_t state = 0;
      for (const TensorSpec& spec : encoding->decode_state(1)) {
        state += spec.bytes();
      }
      fmt::print("{:<12} {:>12} {:>16} {:>18}\n", name, parameters_added(config, *encoding),
                 bound ? fmt::format("{}", *bound) : "any", fmt::format("{} B a layer", state));
    }
  });
}

}  // namespace carope
