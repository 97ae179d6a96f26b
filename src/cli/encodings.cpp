#include <fmt/format.h>

#include <memory>

#include "cli/commands.h"
#include "model/config.h"
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

}  // namespace

void add_encodings(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "encodings", "Lists the positional encodings and what each adds to a model");
  auto path = std::make_shared<std::string>();
  command->add_option(
      "--config", *path,
      "a model's TOML file or a preset, e.g. gpt-tiny; without it, the default model");
  command->callback([path] {
    Settings settings = path->empty() ? Settings{} : load_run_settings(*path);
    const GptConfig config = read_model(settings);
    fmt::print("{} layers, {} heads, width {}, length {}\n\n", config.layers, config.heads,
               config.width, config.length);
    Table table({"encoding", "parameters", "longest input", "decode state, bytes a layer"});
    for (const std::string& name : encoding_names()) {
      const Encoding encoding = make_encoding(name, config.shape(), {});
      const auto bound = encoding.max_length;
      const std::int64_t state =
          gate_of(encoding) != nullptr ? 4 * config.heads * encoding.rotation->pairs : 0;
      table.add({name, fmt::to_string(parameters_added(config, encoding)),
                 bound ? fmt::to_string(*bound) : "any", fmt::to_string(state)});
    }
    fmt::print("{}", table.text());
  });
}

}  // namespace carope
