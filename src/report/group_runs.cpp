#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "core/error.h"
#include "report/results.h"
#include "train/run_config.h"

namespace carope {
namespace {

using Runs = std::vector<const RunRecord*>;

/// A run's settings with the defaults of those that it does not name: the program that made it may
/// have known fewer. One that knew more has made settings that can only be taken as they are.
Settings with_defaults(const Settings& settings) {
  try {
    return read_run(settings).resolved;
  } catch (const ConfigError&) {
    return settings;
  }
}

/// What must be equal in two runs for a mean over them to mean something. Where the data lies does
/// not matter, what it is does.
std::string configuration_of(const RunRecord& run) {
  Settings settings = with_defaults(run.settings);
  settings["train"].erase("seed");
  settings["data"].erase("path");
  return to_toml(settings) + run.data_sha256 + run.evaluated_with;
}

std::string label_of(const RunRecord& run) { return run.label.value_or(run.encoding); }

/// The folder that a reader knows a run by: its experiment's or, outside of any, its own.
std::filesystem::path source_of(const RunRecord& run) {
  return run.experiment.empty() ? run.folder : run.experiment;
}

bool are_same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

/// Whether two folders hold one run. Not even the same seed takes the same time for every step
/// again.
bool is_copy(const RunRecord& a, const RunRecord& b) {
  const auto same_step = [](const TrainingPoint& x, const TrainingPoint& y) {
    return x.tokens == y.tokens && are_same(x.loss, y.loss) &&
           are_same(x.tokens_per_second, y.tokens_per_second);
  };
  const auto same_validation = [](const ValidationPoint& x, const ValidationPoint& y) {
    return x.tokens == y.tokens && are_same(x.loss, y.loss);
  };
  const auto same_length = [](const LengthResult& x, const LengthResult& y) {
    return x.length == y.length && x.perplexity == y.perplexity;
  };
  return a.seed == b.seed && configuration_of(a) == configuration_of(b) &&
         std::ranges::equal(a.training, b.training, same_step) &&
         std::ranges::equal(a.validation, b.validation, same_validation) &&
         (!a.evaluation || !b.evaluation ||
          std::ranges::equal(a.evaluation->lengths, b.evaluation->lengths, same_length));
}

/// Takes all but one of each run's copies out, and returns them. One that was evaluated stays.
Runs take_copies(Runs& runs) {
  Runs kept, copies;
  for (const RunRecord* run : runs) {
    const auto original = std::find_if(
        kept.begin(), kept.end(), [&](const RunRecord* other) { return is_copy(*run, *other); });
    if (original == kept.end()) {
      kept.push_back(run);
      continue;
    }
    if (run->evaluation && !(*original)->evaluation) {
      std::swap(*original, run);
    }
    copies.push_back(run);
  }
  runs = std::move(kept);
  return copies;
}

/// Runs with equal keys together, in the order in which they first occur.
template <class Key>
std::vector<Runs> split(const Runs& runs, const Key& key) {
  std::vector<Runs> parts;
  for (const RunRecord* run : runs) {
    const auto found = std::find_if(parts.begin(), parts.end(), [&](const Runs& part) {
      return key(*part.front()) == key(*run);
    });
    if (found == parts.end()) {
      parts.push_back({run});
    } else {
      found->push_back(run);
    }
  }
  return parts;
}

bool seeds_differ(const Runs& runs) {
  std::set<std::int64_t> seeds;
  return std::all_of(runs.begin(), runs.end(),
                     [&](const RunRecord* run) { return seeds.insert(run->seed).second; });
}

/// Runs of one label, apart where they are not seeds of one configuration. A repetition is no
/// further seed: then each experiment stands for itself.
std::vector<Runs> seeds_of_configurations(const Runs& runs) {
  std::vector<Runs> parts;
  for (const Runs& configuration : split(runs, configuration_of)) {
    if (seeds_differ(configuration)) {
      parts.push_back(configuration);
      continue;
    }
    for (const Runs& together : split(configuration, source_of)) {
      if (seeds_differ(together)) {
        parts.push_back(together);
        continue;
      }
      for (const RunRecord* run : together) {
        parts.push_back({run});
      }
    }
  }
  return parts;
}

/// The shortest names of folders that differ.
std::vector<std::string> folder_names(const std::vector<Runs>& parts) {
  const auto names_by = [&](const auto& name) {
    std::vector<std::string> names;
    for (const Runs& part : parts) {
      names.push_back(name(*part.front()));
    }
    return names;
  };
  const auto differ = [](const std::vector<std::string>& names) {
    return std::set(names.begin(), names.end()).size() == names.size();
  };
  auto names = names_by([](const RunRecord& run) { return folder_name(source_of(run)); });
  if (!differ(names)) {
    names = names_by([](const RunRecord& run) {
      return folder_name(run.folder / "..") + "/" + folder_name(run.folder);
    });
  }
  return differ(names) ? names : names_by([](const RunRecord& run) { return run.folder.string(); });
}

/// The encodings that everybody compares have colours of their own; others share the rest.
void colour(std::vector<EncodingRuns>& encodings) {
  static const std::vector<std::string> kKnown{"carope",     "rope",  "learnable",
                                               "sinusoidal", "alibi", "none"};
  const int known = static_cast<int>(kKnown.size());
  std::set<std::string> coloured;
  int others = 0;
  for (EncodingRuns& encoding : encodings) {
    const auto found = std::find(kKnown.begin(), kKnown.end(), encoding.name);
    encoding.slot = found != kKnown.end() && coloured.insert(encoding.name).second
                        ? static_cast<int>(found - kKnown.begin())
                        : known + others++ % (kSlots - known);
  }
}

}  // namespace

std::vector<EncodingRuns> group_runs(const std::vector<RunRecord>& runs) {
  Runs all;
  for (const RunRecord& run : runs) {
    all.push_back(&run);
  }
  std::vector<EncodingRuns> encodings;
  for (Runs& labelled : split(all, label_of)) {
    Runs copies = take_copies(labelled);
    const std::string name = label_of(*labelled.front());
    const std::vector<Runs> parts = seeds_of_configurations(labelled);
    const std::vector<std::string> folders = folder_names(parts);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      encodings.push_back(
          {.label = parts.size() == 1 ? name : fmt::format("{} ({})", name, folders[i]),
           .name = name,
           .slot = 0,
           .runs = parts[i],
           .copies = std::exchange(copies, {})});
    }
  }
  std::stable_sort(encodings.begin(), encodings.end(), [](const auto& a, const auto& b) {
    return a.runs.front()->order < b.runs.front()->order;
  });
  colour(encodings);
  return encodings;
}

}  // namespace carope
