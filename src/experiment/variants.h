#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/options.h"

namespace carope {

/// One way to tell a model where its tokens are: an encoding with options, under a name for tables.
struct Variant {
  std::string label;
  std::string encoding;
  Options options{};
};

/// The encodings of the paper's table.
std::vector<Variant> paper_variants();

/// What the paper did not run, or may have run: a slower RoPE, CARoPE without context, CARoPE as
/// the paper's formula has it, CARoPE from the token alone, sinusoids of amplitude 1, and two
/// encodings that need no rotation.
std::vector<Variant> control_variants();

/// These, and every other encoding with its defaults.
std::vector<Variant> known_variants();

/// Some of them by label. An unknown one is a ConfigError that suggests
/// the nearest.
std::vector<Variant> find_variants(std::span<const std::string> labels);

}  // namespace carope
