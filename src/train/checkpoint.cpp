#include "train/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
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
constexpr std::string_view kPrefix = "step-";
constexpr const char* kFolder = "checkpoints";

fs::path folder_of(const fs::path& run) { return run / kFolder; }

/// A folder of a checkpoint, which may have been left half written.
struct StepFolder {
  std::int64_t step;
  fs::path path;
  bool complete;
};

/// The step that a checkpoint's folder is named after; nothing for other names, such as that of a
/// copy that a user keeps beside it.
std::optional<std::int64_t> step_of(const fs::path& folder) {
  const std::string name = folder.filename().string();
  std::int64_t step = -1;
  const char* const end = name.data() + name.size();
  if (!name.starts_with(kPrefix) ||
      std::from_chars(name.data() + kPrefix.size(), end, step).ptr != end || step < 0) {
    return std::nullopt;
  }
  return step;
}

/// All that are there, the oldest first. A folder that is there but cannot be read is no empty one.
std::vector<StepFolder> list_step_folders(const fs::path& run) {
  const fs::path folder = folder_of(run);
  std::vector<StepFolder> found;
  try {
    if (fs::symlink_status(folder).type() == fs::file_type::not_found) {
      return {};
    }
    for (const auto& entry : fs::directory_iterator(folder)) {
      if (const auto step = step_of(entry.path()); step && entry.is_directory()) {
        found.push_back({*step, entry.path(), fs::exists(entry.path() / kMark)});
      }
    }
  } catch (const fs::filesystem_error& error) {
    throw FileError(fmt::format(
        "the checkpoints in {} cannot be read: {}; make the folder readable, or name another run",
        folder.string(), error.code().message()));
  }
  std::sort(found.begin(), found.end(),
            [](const StepFolder& a, const StepFolder& b) { return a.step < b.step; });
  return found;
}

std::string first_moment_of(const std::string& parameter) { return parameter + ".first_moment"; }
std::string second_moment_of(const std::string& parameter) { return parameter + ".second_moment"; }

/// Writes on the first rank only.
class RankedWriter {
 public:
  RankedWriter(const Communicator& ranks, const fs::path& path,
               const std::vector<NamedSpec>& specs) {
    if (ranks.rank() == 0) {
      writer_.emplace(path, specs);
    }
  }
  void write(const Tensor& tensor) {
    if (writer_) {
      writer_->write(tensor);
    }
  }
  void commit() {
    if (writer_) {
      writer_->commit();
    }
  }

 private:
  std::optional<SafetensorsWriter> writer_;
};

void save_weights(const fs::path& path, const Trained& trained) {
  const std::span<const Parameter> parameters = trained.model.parameters();
  std::vector<NamedSpec> specs;
  bool whole = true;
  for (const Parameter& parameter : parameters) {
    specs.push_back({parameter.spec.name, {parameter.spec.shape}});
    whole = whole && parameter.value;
  }
  std::vector<Tensor> own;
  for (const Parameter& parameter : trained.model.memory().own()) {
    own.push_back(parameter.value);
  }
  const std::vector<Tensor> gathered =
      whole ? std::vector<Tensor>{} : trained.exchange.whole(trained.ctx, own);
  auto next = gathered.begin();
  RankedWriter writer(trained.ranks, path, specs);
  for (const Parameter& parameter : parameters) {
    const bool shared = !whole && parameter.spec.trainable;
    writer.write(shared ? *next++ : parameter.value);
  }
  writer.commit();
}

void save_moments(const fs::path& path, const Trained& trained) {
  std::vector<NamedSpec> specs;
  for (const auto name_of : {first_moment_of, second_moment_of}) {
    for (const Parameter& parameter : trained.model.parameters()) {
      if (parameter.spec.trainable) {
        specs.push_back({name_of(parameter.spec.name), {parameter.spec.shape}});
      }
    }
  }
  RankedWriter writer(trained.ranks, path, specs);
  for (const auto& own : {trained.optimizer.first_moments(), trained.optimizer.second_moments()}) {
    for (const Tensor& tensor : trained.exchange.whole(trained.ctx, own)) {
      writer.write(tensor);
    }
  }
  writer.commit();
}

/// Keeps the newest, and nothing that was left half written before them.
void remove_old(const fs::path& run, std::int64_t keep) {
  const std::vector<StepFolder> folders = list_step_folders(run);
  std::int64_t newer = 0;
  for (auto folder = folders.rbegin(); folder != folders.rend(); ++folder) {
    if (folder->complete && newer < keep) {
      ++newer;
    } else if (newer > 0) {
      fs::remove(folder->path / kMark);  // first, so that half of it is never taken for a whole
      fs::remove_all(folder->path);
    }
  }
}

struct SavedState {
  RunState run;
  std::int64_t optimizer_steps;
};

/// A number may be written with a point or without.
bool is_same(const OptionValue& a, const OptionValue& b) {
  const auto number = [](const OptionValue& value) -> std::optional<double> {
    if (const auto* whole = std::get_if<std::int64_t>(&value)) {
      return static_cast<double>(*whole);
    }
    const auto* real = std::get_if<double>(&value);
    return real == nullptr ? std::nullopt : std::optional(*real);
  };
  return a == b || (number(a) && number(a) == number(b));
}

/// The checkpoint before another one of its run, if there is one.
std::optional<fs::path> find_older(const fs::path& checkpoint) {
  std::vector<fs::path> older = list_checkpoints(checkpoint.parent_path().parent_path());
  std::erase_if(older,
                [&](const fs::path& other) { return step_of(other) >= step_of(checkpoint); });
  return older.empty() ? std::nullopt : std::optional(older.back());
}

/// How a run goes on without a checkpoint that cannot be read.
std::string remedy_without(const fs::path& checkpoint) {
  const std::optional<fs::path> older = find_older(checkpoint);
  return older ? fmt::format(
                     "if it cannot be put back, delete {}, and the run goes on from {}, the "
                     "checkpoint before it",
                     checkpoint.string(), older->filename().string())
               : fmt::format(
                     "if it cannot be put back, begin again in another folder: {} keeps no "
                     "older checkpoint",
                     checkpoint.parent_path().parent_path().string());
}

SavedState read_state(const fs::path& checkpoint) {
  const fs::path file = checkpoint / kState;
  try {
    const Json json = parse_json<Json>(read_file(file), file.string());
    return {{json.at("step"), json.at("tokens"), json.at("seconds")}, json.at("optimizer_steps")};
  } catch (const Json::exception& error) {
    throw FileError(fmt::format("{} is not readable: {}; use an older checkpoint", file.string(),
                                error.what()));
  }
}

void read_weights(const fs::path& checkpoint, const Gpt& model) {
  const SafetensorsFile file(checkpoint / kModel);
  std::vector<float> values;
  for (std::size_t i = 0; i < model.parameters().size(); ++i) {
    const ParameterSpec& spec = model.parameters()[i].spec;
    values.resize(static_cast<std::size_t>(spec.shape.size()));
    file.read(spec.name, Tensor::of(values, spec.shape));
    model.memory().set(i, values);
  }
}

}  // namespace

fs::path save_checkpoint(const fs::path& run, const RunConfig& config, const Trained& trained,
                         const RunState& state) {
  const fs::path folder = folder_of(run) / fmt::format("{}{:08}", kPrefix, state.step);
  const bool first = trained.ranks.rank() == 0;
  if (first) {
    fs::remove(folder / kMark);
    make_folder(folder);
  }
  save_weights(folder / kModel, trained);
  save_moments(folder / kOptimizer, trained);
  if (first) {
    write_file(folder / kConfig, to_toml(config.resolved));
    const Json json{{"step", state.step},
                    {"optimizer_steps", trained.optimizer.steps()},
                    {"tokens", state.tokens},
                    {"seconds", state.seconds}};
    write_file(folder / kState, json.dump(2) + "\n");
    write_file(folder / kMark, "");
    remove_old(run, config.train.keep);
  }
  return folder;
}

std::vector<fs::path> list_checkpoints(const fs::path& run) {
  std::vector<fs::path> checkpoints;
  for (const StepFolder& folder : list_step_folders(run)) {
    if (folder.complete) {
      checkpoints.push_back(folder.path);
    }
  }
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

void require_no_checkpoint(const fs::path& folder) {
  check<ConfigError>(!folder.empty(), "the run's folder has no name; give --out FOLDER");
  const fs::path whole = fs::absolute(folder / "").lexically_normal().parent_path();
  const fs::path parent = whole.parent_path();
  check<ConfigError>(!fs::exists(whole / kMark),
                     "{} is a checkpoint, in which no run can be; name {}", folder.string(),
                     parent.filename() == kFolder
                         ? fmt::format("the folder of its run, {}", parent.parent_path().string())
                         : "another folder");
}

RunConfig saved_config(const fs::path& run_or_checkpoint) {
  return read_run(load_settings(run_or_checkpoint / kConfig, run_sections()));
}

RunConfig resumed_config(const fs::path& run) {
  const fs::path checkpoint = find_checkpoint(run);
  try {
    return saved_config(checkpoint);
  } catch (const Error& error) {
    throw FileError(fmt::format("{}; {}", error.what(), remedy_without(checkpoint)));
  }
}

void require_same(const RunConfig& begun, const Settings& given, const fs::path& run) {
  Settings merged = begun.resolved;
  for (const auto& [section, options] : given) {
    for (const auto& [key, value] : options) {
      const auto [known, unknown] = merged[section].emplace(key, value);
      check<ConfigError>(unknown || is_same(known->second, value),
                         "{}.{} = {} is not what {} was begun with; leave it out, or begin in "
                         "another folder",
                         section, key, to_string(value), run.string());
    }
  }
  // Last, because it depends on the encoding what settings there are.
  read_run(merged);
}

RunState checkpoint_state(const fs::path& checkpoint) { return read_state(checkpoint).run; }

void require_same_step(Communicator& ranks, std::int64_t step, const fs::path& run) {
  const auto own = static_cast<double>(step);
  const std::vector<double> steps = ranks.gather({&own, 1});
  for (std::size_t rank = 0; rank < steps.size(); ++rank) {
    check<FileError>(
        steps[rank] == steps[0],
        "{} is at step {} for rank 0, but at {} for rank {}; all machines must see the "
        "same folder, and what was last written to it",
        run.string(), steps[0], steps[rank], rank);
  }
}

void load_weights(const fs::path& checkpoint, const Gpt& model) try {
  read_weights(checkpoint, model);
} catch (const FileError& error) {
  const std::optional<fs::path> older = find_older(checkpoint);
  throw FileError(older ? fmt::format("{}; {}, the checkpoint before it, can be named instead",
                                      error.what(), older->string())
                        : error.what());
}

RunState load_checkpoint(const fs::path& checkpoint, const Trained& trained) try {
  read_weights(checkpoint, trained.model);
  const SafetensorsFile file(checkpoint / kOptimizer);
  const std::vector<Tensor> first = trained.optimizer.first_moments();
  const std::vector<Tensor> second = trained.optimizer.second_moments();
  const std::span<const Parameter> own = trained.model.memory().own();
  for (std::size_t i = 0; i < own.size(); ++i) {
    const std::string& name = own[i].spec.name;
    const TensorSpec whole{trained.model.parameter(name).spec.shape};
    file.read_part(first_moment_of(name), whole, own[i].begin, first[i]);
    file.read_part(second_moment_of(name), whole, own[i].begin, second[i]);
  }
  const SavedState state = read_state(checkpoint);
  check<FileError>(step_of(checkpoint) == state.run.step, "{} is of step {} by its {}",
                   checkpoint.string(), state.run.step, kState);
  trained.optimizer.set_steps(state.optimizer_steps);
  return state.run;
} catch (const FileError& error) {
  throw FileError(fmt::format("{}; {}", error.what(), remedy_without(checkpoint)));
}

}  // namespace carope
