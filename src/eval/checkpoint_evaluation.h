#pragma once

#include <filesystem>
#include <vector>

#include "eval/perplexity.h"

namespace carope {

/// Scores checkpoints, each named itself or by its run, on the same tokens: the validation split of
/// `data`, by default of the data that they were trained on. Without lengths, those are 1, 2 and 4
/// times the training length. Throws where the results could not be compared.
std::vector<Evaluation> evaluate_checkpoints(
    Context& ctx, const std::vector<std::filesystem::path>& runs_or_checkpoints, EvalConfig config,
    const std::filesystem::path& data = {});

}  // namespace carope
