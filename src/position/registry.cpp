#include "position/registry.h"

#include <fmt/ranges.h>

// One line an encoding: X(name) stands for make_name() in name.cpp.
#define CAROPE_ENCODINGS(X) \
  X(alibi)                  \
  X(carope)                 \
  X(learnable)              \
  X(none)                   \
  X(rope)                   \
  X(sinusoidal)

namespace carope {
namespace {

using Factory = std::unique_ptr<PositionEncoding>(const EncodingSetup&);

}  // namespace

#define CAROPE_DECLARE(name) Factory make_##name;
CAROPE_ENCODINGS(CAROPE_DECLARE)
#undef CAROPE_DECLARE

namespace {

struct Entry {
  const char* name;
  Factory* make;
};

#define CAROPE_ENTRY(name) Entry{#name, make_##name},
constexpr Entry kEncodings[] = {CAROPE_ENCODINGS(CAROPE_ENTRY)};
#undef CAROPE_ENTRY

}  // namespace

std::vector<std::string> encoding_names() {
  std::vector<std::string> names;
  for (const Entry& entry : kEncodings) {
    names.emplace_back(entry.name);
  }
  return names;
}

std::string default_encoding() { return "carope"; }

std::unique_ptr<PositionEncoding> make_encoding(const std::string& name, const ModelShape& shape,
                                                const Placement& placement, const Options& options,
                                                Options* resolved) {
  for (const Entry& entry : kEncodings) {
    if (name == entry.name) {
      OptionReader reader("position", options);
      auto encoding = entry.make({shape, placement.device, placement.compute, reader});
      const Options read = reader.finish();
      if (resolved != nullptr) {
        *resolved = read;
      }
      return encoding;
    }
  }
  const auto names = encoding_names();
  throw ConfigError(
      fmt::format("position.encoding = {}: unknown encoding; did you mean '{}'? Valid: {}", name,
                  nearest(name, names), fmt::join(names, ", ")));
}

}  // namespace carope
