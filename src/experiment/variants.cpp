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
          // Heads of CARoPE's GPT-Tiny end up as far from each other as this.
          {"carope-spread", "carope", {{"frozen", true}, {"bias_deviation", 0.6}}},
          {"carope-literal", "carope", {{"bias", false}, {"weight_deviation", 0.02}}},
          {"carope-embedding", "carope", {{"source", std::string("embedding")}}},
          {"sinusoidal-1", "sinusoidal", {{"scale", 1.0}}},
          {"none", "none"},
          {"alibi", "alibi"}};
}

std::vector<Variant> known_variants() {
  std::vector<Variant> known = paper_variants();
  const auto add = [&](const Variant& variant) {
    if (std::none_of(known.begin(), known.end(),
                     [&](const Variant& other) { return other.label == variant.label; })) {
      known.push_back(variant);
    }
  };
  for (const Variant& control : control_variants()) {
    add(control);
  }
  for (const std::string& name : encoding_names()) {
    add({name, name});
  }
  return known;
}

std::vector<Variant> find_variants(std::span<const std::string> labels) {
  const std::vector<Variant> known = known_variants();
  std::vector<std::string> names;
  for (const Variant& variant : known) {
    names.push_back(variant.label);
  }
  std::vector<Variant> found;
  for (const std::string& label : labels) {
    const auto name = std::find(names.begin(), names.end(), label);
    check<ConfigError>(name != names.end(), "unknown encoding '{}'; did you mean '{}'? Valid: {}",
                       label, nearest(label, names), fmt::join(names, ", "));
    found.push_back(known[static_cast<std::size_t>(name - names.begin())]);
  }
  return found;
}

}  // namespace carope
