#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "core/error.h"

namespace carope {

/// Throws a FileError if JSON text has lists and objects in one another deeper than any file of
/// use. `name` says in messages what the text is.
inline void require_shallow_json(std::string_view text, std::string_view name) {
  constexpr int kDeepest = 64;
  int depth = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') {
      quoted = !quoted;
    } else if (quoted) {
      i += c == '\\' ? 1 : 0;  // what follows may be a quote that ends nothing
    } else if (c == '[' || c == '{') {
      check<FileError>(++depth <= kDeepest,
                       "{} has lists and objects in one another more than {} deep at byte {}; it "
                       "was damaged or is another file, get or make it again",
                       name, kDeepest, i);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
}

/// What JSON text from outside stands for. Copying and printing a value take stack for each level,
/// so that text which is too deep would end the program: it is refused before. Text that is no JSON
/// throws Json::parse_error or, without `allow_exceptions`, is a discarded value.
template <class Json>
Json parse_json(std::string_view text, std::string_view name, bool allow_exceptions = true) {
  require_shallow_json(text, name);
  return Json::parse(text, nullptr, allow_exceptions);
}

}  // namespace carope
