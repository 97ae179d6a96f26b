#pragma once

#include <vector>

#include "core/arena.h"
#include "model/block.h"

namespace carope {

/// All memory of a pass over [B, T] tokens, planned once. N = B T.
struct Activations {
  Activations(const GptConfig& config, const Block& block, const Plan& plan);

  Plan plan;
  Tensor embedding;  // [N, C] before the first block
  std::vector<BlockActivations> blocks;
  BlockWorkspace workspace;
  Tensor logits;          // [rows of a chunk, V]
  Tensor final_residual;  // [N, C]
  Normed final_normed;    // [N, C]
  Tensor losses;          // [N]
  Tensor total_loss;      // [1] f64, over as many batches as a step has

  std::size_t bytes() const { return arena_.bytes(); }

 private:
  Arena arena_;
};

/// What a model remembers of the tokens it has seen, when sequences come in pieces.
struct DecodeState {
  DecodeState(const GptConfig& config, const Block& block, std::int64_t batch,
              std::int64_t capacity, Device device, DType compute);

  std::vector<AttentionState> layers;
  Tensor offsets;                  // [B] i32: tokens of each row, where the model computes
  std::vector<std::int64_t> seen;  // [B] the same, here
  std::int64_t capacity;           // tokens of a row, at most

  std::int64_t longest() const;
  /// Forgets what was seen, so that other sequences can begin.
  void restart();

 private:
  Arena arena_;
};

}  // namespace carope
