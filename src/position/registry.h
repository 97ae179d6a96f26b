#pragma once

#include <string>
#include <vector>

#include "position/encoding.h"

namespace carope {

/// The names of all encodings, in alphabetical order.
std::vector<std::string> encoding_names();

/// The encoding of a model that asks for none.
std::string default_encoding();

/// Makes an encoding by name. Names joined by '+' are composed, e.g. "rope+alibi": the options and
/// parameters of such an encoding carry the name of their part, e.g. "rope.base". An unknown name
/// or option is a ConfigError that suggests the nearest; so are two parts that do the same thing.
/// `resolved`, if given, gets every option with its value or its default.
Encoding make_encoding(const std::string& name, const ModelShape& shape, const Options& options,
                       Options* resolved = nullptr);

}  // namespace carope
