#pragma once

#include <memory>
#include <string>
#include <vector>

#include "position/encoding.h"

namespace carope {

/// The names of all encodings, in alphabetical order.
std::vector<std::string> encoding_names();

/// The encoding of a model that asks for none.
std::string default_encoding();

/// Where a model computes, and the type of its activations.
struct Placement {
  Device device{};
  DType compute = DType::kF32;
};

/// Makes an encoding by name. An unknown name or option is a ConfigError that suggests the nearest.
/// `resolved`, if given, gets every option with its value or its default.
std::unique_ptr<PositionEncoding> make_encoding(const std::string& name, const ModelShape& shape,
                                                const Placement& placement, const Options& options,
                                                Options* resolved = nullptr);

}  // namespace carope
