#include "position/registry.h"

#include <fmt/ranges.h>

#include <algorithm>

// One line an encoding: X(name) stands for encodings::name() in name.cpp.
#define CAROPE_ENCODINGS(X) \
  X(alibi)                  \
  X(carope)                 \
  X(learnable)              \
  X(none)                   \
  X(rope)                   \
  X(sinusoidal)

namespace carope {

using EncodingFunction = Encoding(const ModelShape&, OptionReader&);

namespace encodings {
#define CAROPE_DECLARE(name) EncodingFunction name;
CAROPE_ENCODINGS(CAROPE_DECLARE)
#undef CAROPE_DECLARE
}  // namespace encodings

namespace {

struct Entry {
  const char* name;
  EncodingFunction* make;
};

#define CAROPE_ENTRY(name) Entry{#name, encodings::name},
constexpr Entry kEncodings[] = {CAROPE_ENCODINGS(CAROPE_ENTRY)};
#undef CAROPE_ENTRY

const Entry& entry_of(const std::string& name) {
  check<ConfigError>(
      !name.empty(),
      "position.encoding: a name is empty; write names joined by '+', e.g. rope+alibi");
  const auto* found = std::find_if(std::begin(kEncodings), std::end(kEncodings),
                                   [&](const Entry& entry) { return name == entry.name; });
  if (found != std::end(kEncodings)) {
    return *found;
  }
  const auto names = encoding_names();
  throw ConfigError(
      fmt::format("position.encoding = {}: unknown encoding; did you mean '{}'? Valid: {}", name,
                  nearest(name, names), fmt::join(names, ", ")));
}

std::vector<std::string> split(const std::string& name) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('+', begin), name.size());
    parts.push_back(name.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

/// Collects the parts of a composition and remembers whose each is.
class Composition {
 public:
  explicit Composition(const std::string& name) : name_(name) {}

  void add(const std::string& part, Encoding encoding) {
    name_parameters(part, encoding);
    claim(part, encoding.additive, whole_.additive, "add to the embedding", adds_);
    claim(part, encoding.rotation, whole_.rotation, "rotate q and k", rotates_);
    claim(part, encoding.bias, whole_.bias, "bias the scores of attention", biases_);
    if (encoding.max_length) {
      whole_.max_length =
          std::min(*encoding.max_length, whole_.max_length.value_or(*encoding.max_length));
    }
  }

  const Encoding& whole() const { return whole_; }

 private:
  static void name_parameters(const std::string& part, Encoding& encoding) {
    if (encoding.additive) {
      if (auto* learned = std::get_if<LearnedPositions>(&*encoding.additive)) {
        learned->table.name = part + "." + learned->table.name;
      }
    }
    if (gate_of(encoding) != nullptr) {
      GateSpec& gate = std::get<PowerTurns>(encoding.rotation->turns).gate;
      gate.weight.name = part + "." + gate.weight.name;
      if (gate.bias) {
        gate.bias->name = part + "." + gate.bias->name;
      }
    }
  }

  template <class T>
  void claim(const std::string& part, std::optional<T>& given, std::optional<T>& place,
             const char* what, std::string& owner) {
    if (!given) {
      return;
    }
    check<ConfigError>(owner != part, "position.encoding = {}: '{}' occurs twice", name_, part);
    check<ConfigError>(!place,
                       "position.encoding = {}: both '{}' and '{}' {}; leave one of them out",
                       name_, owner, part, what);
    place = std::move(given);
    owner = part;
  }

  const std::string& name_;
  Encoding whole_;
  std::string adds_, rotates_, biases_;  // which part does
};

Encoding compose(const std::string& name, const std::vector<std::string>& parts,
                 const ModelShape& shape, Options options, Options& resolved) {
  Composition composition(name);
  for (const std::string& part : parts) {
    const Entry& entry = entry_of(part);
    const std::string prefix = part + ".";
    Options own;
    for (auto each = options.begin(); each != options.end();) {
      if (each->first.starts_with(prefix)) {
        own[each->first.substr(prefix.size())] = each->second;
        each = options.erase(each);
      } else {
        ++each;
      }
    }
    OptionReader reader("position." + part, own);
    composition.add(part, entry.make(shape, reader));
    for (const auto& [key, value] : reader.finish()) {
      resolved[prefix + key] = value;
    }
  }
  if (!options.empty()) {
    const auto& [key, value] = *options.begin();
    throw ConfigError(
        fmt::format("position.{} = {}: the parts of position.encoding = {} have no such option; "
                    "options carry the name of their part, e.g. position.{}.NAME",
                    key, to_string(value), name, parts.front()));
  }
  return composition.whole();
}

}  // namespace

std::vector<std::string> encoding_names() {
  std::vector<std::string> names;
  for (const Entry& entry : kEncodings) {
    names.emplace_back(entry.name);
  }
  return names;
}

std::string default_encoding() { return "carope"; }

Encoding make_encoding(const std::string& name, const ModelShape& shape, const Options& options,
                       Options* resolved) {
  const std::vector<std::string> parts = split(name);
  Options read;
  Encoding encoding;
  if (parts.size() > 1) {
    encoding = compose(name, parts, shape, options, read);
  } else {
    for (const auto& [key, value] : options) {
      if (key.starts_with(name + ".")) {
        throw ConfigError(fmt::format(
            "position.{} = {}: write position.{}; options carry the name of a part only "
            "where encodings are composed",
            key, to_string(value), key.substr(name.size() + 1)));
      }
    }
    OptionReader reader("position", options);
    encoding = entry_of(name).make(shape, reader);
    read = reader.finish();
  }
  if (resolved != nullptr) {
    *resolved = read;
  }
  return encoding;
}

}  // namespace carope
