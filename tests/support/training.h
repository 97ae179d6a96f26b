#pragma once

#include <filesystem>
#include <string>

#include "data/shards/manifest.h"

// A training run that takes a second, for the tests of what comes before, in and after it.
namespace carope::test {

/// Token shards of both splits, of 50 ids that repeat with noise, so that there is something to
/// learn: 700 tokens for validation, 5 000 to train on.
void write_training_data(const std::filesystem::path& folder);

/// The manifest of a folder of shards, as if `carope data prepare` had made it.
Manifest manifest_of(const std::filesystem::path& folder);

/// The settings of a tiny model that learns from these shards for 100 steps, as a command line has
/// them.
std::string small_training(const std::filesystem::path& data);

}  // namespace carope::test
