#include "experiment/variants.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "position/registry.h"

namespace carope {

std::vector<Variant> paper_variants() {
  return {{"carope", "carope"},
          {"rope", "rope"},
          {"learnable", "learnable"},
          {"sinusoidal", "sinusoidal"}};
}

std::vector<Variant> control_variants() {
  // Without a bias, CARoPE's gate starts at f = 1 / (1 + ln 2), which is RoPE with this base.
  constexpr double kSlowBase = 2.08e7;
  return {{"rope-2.08e7", "rope", {{"base", kSlowBase}}},
          {"carope-frozen", "carope", {{"frozen", true}}},
          {"carope-literal", "carope", {{"bias", false}, {"weight_deviation", 0.02}}},
          {"none", "none"},
          {"alibi", "alibi"}};
}

std::vector<Variant> find_variants(std::span<const std::string> labels) {
  std::vector<Variant> known = paper_variants();
  for (const auto& more : {control_variants(), [] {
                             std::vector<Variant> plain;
                             for (const std::string& name : encoding_names()) {
                               plain.push_back({name, name});
                             }
                             return plain;
                           }()}) {
    known.insert(known.end(), more.begin(), more.end());
  }
  std::vector<Variant> found;
  for (const std::string& label : labels) {
    const auto variant = std::find_if(known.begin(), known.end(),
                                      [&](const Variant& v) { return v.label == label; });
    if (variant == known.end()) {
      std::vector<std::string> names;
      for (const Variant& v : known) {
        if (std::find(names.begin(), names.end(), v.label) == names.end()) {
          names.push_back(v.label);
        }
      }
      throw ConfigError(fmt::format("unknown encoding '{}'; did you mean '{}'? Valid: {}", label,
                                    nearest(label, names), fmt::join(names, ", ")));
    }
    found.push_back(*variant);
  }
  return found;
}

}  // namespace carope
