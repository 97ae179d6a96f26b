#pragma once

#include <string>

#include "core/context.h"
#include "train/run_config.h"

namespace carope {

/// Which kernels would serve a training step on this device, and what memory it would take. Takes
/// that memory for a moment; reads no data.
std::string explain_training(const Context& ctx, const RunConfig& config);

}  // namespace carope
