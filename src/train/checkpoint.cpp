#include "train/checkpoint.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/file.h"
#include "core/safetensors.h"

namespace carope {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kModel = "model.safetensors";
constexpr const char* kOptimizer = "optimizer.safetensors";
constexpr const char* kConfig = "config.toml";
constexpr const char* kState = "state.json";
constexpr const char* kMark = "complete";  // written last: without it the rest counts for nothing
constexpr const char* kPrefix = "step-";

fs::path folder_of(const fs::path& run) { return run / "checkpoints"; }

std::vector<NamedTensor> weights_of(const Gpt& model) {
  std::vector<NamedTensor> weights;
  for (const Parameter& parameter : model.parameters()) {
    weights.push_back({parameter.spec.name, parameter.value});
  }
  return weights;
}

void remove_old(const fs::path& run, std::int64_t keep) {
  const auto checkpoints = list_checkpoints(run);
  const auto count = static_cast<std::int64_t>(checkpoints.size());
  for (std::int64_t i = 0; i + keep < count; ++i) {
    const fs::path& old = checkpoints[static_cast<std::size_t>(i)];
    fs::remove(old / kMark);  // first, so that half of it is never taken for a whole
    fs::remove_all(old);
  }
}

struct SavedState {
  RunState run;
  std::int64_t optimizer_steps;
};

SavedState read_state(const fs::path& checkpoint) {
  const fs::path file = checkpoint / kState;
  try {
    const Json json = Json::parse(read_file(file));
    return {{json.at("step"), json.at("tokens"), json.at("seconds")}, json.at("optimizer_steps")};
  } catch (const Json::exception& error) {
    throw FileError(fmt::format("{} is not readable: {}; use an older checkpoint", file.string(),
                                error.what()));
  }
}

}  // namespace

fs::path save_checkpoint(const fs::path& run, const RunConfig& config, const Gpt& model,
                         const Optimizer& optimizer, const RunState& state) {
  const fs::path folder = folder_of(run) / fmt::format("{}{:08}", kPrefix, state.step);
  fs::remove(folder / kMark);
  make_folder(folder);
  save_safetensors(folder / kModel, weights_of(model));
  save_safetensors(folder / kOptimizer, optimizer.moments());
  write_file(folder / kConfig, to_toml(config.resolved));
  const Json json{{"step", state.step},
                  {"optimizer_steps", optimizer.steps()},
                  {"tokens", state.tokens},
                  {"seconds", state.seconds}};
  write_file(folder / kState, json.dump(2) + "\n");
  write_file(folder / kMark, "");
  remove_old(run, config.train.keep);
  return folder;
}

std::vector<fs::path> list_checkpoints(const fs::path& run) {
  std::vector<fs::path> checkpoints;
  std::error_code missing;
  for (const auto& entry : fs::directory_iterator(folder_of(run), missing)) {
    if (entry.path().filename().string().starts_with(kPrefix) && fs::exists(entry.path() / kMark)) {
      checkpoints.push_back(entry.path());
    }
  }
  std::sort(checkpoints.begin(), checkpoints.end());
  return checkpoints;
}

fs::path find_checkpoint(const fs::path& run_or_checkpoint) {
  if (fs::exists(run_or_checkpoint / kMark)) {
    return run_or_checkpoint;
  }
  const auto checkpoints = list_checkpoints(run_or_checkpoint);
  check<FileError>(!checkpoints.empty(),
                   "{} holds no complete checkpoint; name a run's folder or one of its checkpoints",
                   run_or_checkpoint.string());
  return checkpoints.back();
}

RunConfig saved_config(const fs::path& run_or_checkpoint) {
  return read_run(load_settings(run_or_checkpoint / kConfig, run_sections()));
}

void require_same(const RunConfig& begun, const Settings& given, const fs::path& run) {
  Settings merged = begun.resolved;
  for (const auto& [section, options] : given) {
    for (const auto& [key, value] : options) {
      merged[section][key] = value;
      check<ConfigError>(to_toml(read_run(merged).resolved) == to_toml(begun.resolved),
                         "{}.{} = {} is not what {} was begun with; leave it out, or begin in "
                         "another folder",
                         section, key, to_string(value), run.string());
    }
  }
}

RunState checkpoint_state(const fs::path& checkpoint) { return read_state(checkpoint).run; }

void load_weights(const fs::path& checkpoint, const Gpt& model) {
  const SafetensorsFile file(checkpoint / kModel);
  for (const auto& [name, tensor] : weights_of(model)) {
    file.read(name, tensor);
  }
  model.round_parameters();
}

RunState load_checkpoint(const fs::path& checkpoint, const Gpt& model, Optimizer& optimizer) {
  load_weights(checkpoint, model);
  const SafetensorsFile moments(checkpoint / kOptimizer);
  for (const auto& [name, tensor] : optimizer.moments()) {
    moments.read(name, tensor);
  }
  const SavedState state = read_state(checkpoint);
  optimizer.set_steps(state.optimizer_steps);
  return state.run;
}

}  // namespace carope
