#pragma once

#include <memory>
#include <optional>

#include "data/loader/loader.h"
#include "data/tokenizer/tokenizer.h"
#include "dist/communicator.h"
#include "model/gpt.h"
#include "train/run_config.h"

namespace carope {

/// Throws, with what to do, unless the run's data is there, and all that its manifest names.
void require_data(const RunConfig& config);

/// The hash by which data is known again, that of its manifest; empty where there is none.
std::string data_hash(const std::filesystem::path& data);
/// Whether this is what a run was begun with, wherever it lay then. Without a manifest it is not
/// known.
bool is_data_of(const std::filesystem::path& run, const std::filesystem::path& data);
/// Throws if a run was begun with other data, as far as that is known.
void require_same_data(const std::filesystem::path& run, const std::filesystem::path& data);

/// Throws if other data's tokens are known to be of another tokenizer than those a run was trained
/// on. Their manifests tell; a shard's is that of its folder.
void require_same_tokenizer(const RunConfig& config, const std::filesystem::path& data);

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
