#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/tokenizer.h"
#include "train/run_config.h"

// What a model's token numbers mean.
namespace carope {

/// The tokenizer of a run: the copy that lies beside its data, or the one that is named. Throws if
/// there is none, or if the run's model cannot have been trained with it.
Tokenizer tokenizer_of(const RunConfig& run, const std::string& name);

/// The ids that stand for something, in rising order. A model's vocabulary may have more.
std::vector<TokenId> known_tokens(const Tokenizer& tokenizer);

/// The tokens of a prompt, with end of text before them, as before every document in training.
std::vector<TokenId> prompt_tokens(const Tokenizer& tokenizer, std::string_view text);

}  // namespace carope
