#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "model/gpt.h"
#include "train/gradient_exchange.h"
#include "train/optimizer.h"
#include "train/run_config.h"

namespace carope {

/// What a run is at besides its tensors. Everything random is a function of (seed, step), so this
/// is all.
struct RunState {
  std::int64_t step = 0;  // steps done
  std::int64_t tokens = 0;
  double seconds = 0.0;  // of training
};

/// What is trained, and the ranks that share it.
struct Trained {
  Context& ctx;
  Communicator& ranks;
  const Gpt& model;
  Optimizer& optimizer;
  GradientExchange& exchange;
};

/// Saves a checkpoint as the folder RUN/checkpoints/step-NNNNNNNN: weights and optimizer as
/// safetensors, the configuration, the state, and a mark that is written last. Then removes all but
/// the newest `keep`. All ranks call it, the first writes; what it writes does not tell how many
/// there are.
std::filesystem::path save_checkpoint(const std::filesystem::path& run, const RunConfig& config,
                                      const Trained& trained, const RunState& state);

/// The complete checkpoints of a run, oldest first. What was cut off by a crash is not among them.
std::vector<std::filesystem::path> list_checkpoints(const std::filesystem::path& run);

/// The newest checkpoint of a run, or the checkpoint itself if one is named. Throws if there is
/// none.
std::filesystem::path find_checkpoint(const std::filesystem::path& run_or_checkpoint);

/// Throws if a folder that is to hold a run is a checkpoint itself.
void require_no_checkpoint(const std::filesystem::path& folder);

/// The configuration that a run was begun, or a checkpoint trained, with.
RunConfig saved_config(const std::filesystem::path& run_or_checkpoint);

/// The configuration that a run goes on with, its newest checkpoint's. Where that is not readable
/// the error says which folder to delete.
RunConfig resumed_config(const std::filesystem::path& run);

/// Throws unless settings that are given again are those that the run in this folder was begun
/// with: a run that changes on the way can be neither repeated nor compared.
void require_same(const RunConfig& begun, const Settings& given, const std::filesystem::path& run);

/// How far a checkpoint had come.
RunState checkpoint_state(const std::filesystem::path& checkpoint);

/// Throws, on all ranks, unless they found the run at the same step: another machine may see
/// another folder by that name, or what was there before.
void require_same_step(Communicator& ranks, std::int64_t step, const std::filesystem::path& run);

/// Puts a checkpoint's weights into a model of its configuration. Where they are not readable the
/// error names the checkpoint before it.
void load_weights(const std::filesystem::path& checkpoint, const Gpt& model);

/// Puts all of a checkpoint back, or a rank's part of it. Where it is not readable the error says
/// which folder to delete so that the run goes on from the checkpoint before it.
RunState load_checkpoint(const std::filesystem::path& checkpoint, const Trained& trained);

}  // namespace carope
