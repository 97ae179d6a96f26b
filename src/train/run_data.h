#pragma once

#include <memory>
#include <optional>

#include "data/loader/loader.h"
#include "data/tokenizer/tokenizer.h"
#include "dist/communicator.h"
#include "model/gpt.h"
#include "train/run_config.h"

namespace carope {

/// Throws, with what to do, unless the run's data is there.
void require_data(const RunConfig& config);

/// The copy of the tokenizer that lies beside a run's data, as carope data prepare leaves it.
std::filesystem::path tokenizer_beside_data(const RunConfig& config);
/// That tokenizer, where there is one.
std::optional<Tokenizer> load_tokenizer_beside_data(const RunConfig& config);

/// What a rank of a run trains on, from a step on.
std::unique_ptr<Loader> open_training(const RunConfig& config, std::int64_t first_step,
                                      const Communicator& ranks);

/// What a run is validated on, in order, some rows at a time.
std::unique_ptr<Loader> open_validation(const RunConfig& config, std::int64_t rows);

/// A loaded batch, for the model.
Batch batch_of(const TokenBatch& loaded);

}  // namespace carope
