#pragma once

#include <filesystem>
#include <vector>

#include "eval/perplexity.h"
#include "train/run_config.h"

namespace carope {

/// Scores a model that is loaded on the validation split of `data`, once by each protocol. `title`
/// is that of the progress shown. Here and below, ranks work together and all get the results.
std::vector<Evaluation> evaluate_model(Context& ctx, Communicator& ranks, Gpt& model,
                                       const RunConfig& run, const EvalConfig& config,
                                       std::span<const Protocol> protocols,
                                       const std::filesystem::path& data, const std::string& title);

/// Scores checkpoints, each named itself or by its run, on the same tokens: the validation split of
/// `data`, by default of the data that they were trained on. Without lengths, those are 1, 2 and 4
/// times the training length. `rope_scaling`, e.g. "yarn:4", replaces that of the models. Throws
/// where the results could not be compared, or where the data is known to be of another tokenizer.
std::vector<Evaluation> evaluate_checkpoints(
    Context& ctx, Communicator& ranks,
    const std::vector<std::filesystem::path>& runs_or_checkpoints, EvalConfig config,
    const std::filesystem::path& data = {}, const std::string& rope_scaling = {});

/// Where a run keeps an evaluation with another RoPE scaling, for `carope report`.
std::filesystem::path scaled_evaluation_file(const std::filesystem::path& run,
                                             const Evaluation& evaluation);
/// Keeps such an evaluation in the folder of the run that its checkpoint is in, if it is in one.
/// Returns the file, or nothing. The scaling "none" is not kept.
std::optional<std::filesystem::path> keep_scaled_evaluation(const Evaluation& evaluation);

}  // namespace carope
