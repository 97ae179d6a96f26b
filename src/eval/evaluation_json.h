#pragma once

#include <span>
#include <string>

#include "eval/perplexity.h"

namespace carope {

/// An evaluation as RUN/evaluation.json has it. A length without a value has null and a reason.
std::string to_json(const Evaluation& evaluation);
/// Several, as an array.
std::string to_json(std::span<const Evaluation> evaluations);

}  // namespace carope
