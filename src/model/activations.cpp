#include "model/activations.h"

#include <algorithm>

namespace carope {

Activations::Activations(const GptConfig& config, const Block& block, const Plan& given)
    : plan(given) {
  const Pass& pass = plan.pass;
  const std::int64_t rows = pass.tokens();
  const bool training = pass.trains();
  arena_ = Arena::plan(plan.device, [&](Arena& arena) {
    const auto take_rows = [&] { return arena.take({{rows, config.width}, plan.compute}); };
    embedding = take_rows();
    workspace = block.plan_workspace(arena, plan);
    blocks.clear();
    if (training) {
      for (std::int64_t layer = 0; layer < config.layers; ++layer) {
        const Tensor residual = layer == 0 ? embedding : take_rows();
        blocks.push_back(block.plan(arena, plan, workspace));
        blocks.back().residual = residual;
      }
    } else {
      // Blocks add to the residual by turns in two places, the first of which is the embedding's
      // unless that must outlive it.
      const Tensor residual = block.attention().reads_embedding() ? take_rows() : embedding;
      blocks.assign(static_cast<std::size_t>(config.layers), block.plan(arena, plan, workspace));
      for (BlockActivations& each : blocks) {
        each.residual = residual;
      }
      blocks.front().residual = embedding;
    }
    final_residual = training ? take_rows() : blocks.back().residual;
    final_normed = take_normed(arena, take_rows());
    losses = arena.take({rows});
    total_loss = arena.take({{1}, DType::kF64});
    // What is sampled from or scored comes unrounded; a training step reads and writes its logits.
    logits =
        arena.take({{plan.logit_rows, config.vocabulary}, training ? plan.compute : DType::kF32});
  });
}

DecodeState::DecodeState(const GptConfig& config, const Block& block, std::int64_t batch,
                         std::int64_t most, Device device, DType compute)
    : seen(static_cast<std::size_t>(batch)), capacity(most) {
  arena_ = Arena::plan(device, [&](Arena& arena) {
    layers.clear();
    for (std::int64_t layer = 0; layer < config.layers; ++layer) {
      layers.push_back(block.attention().plan_state(arena, batch, capacity, compute));
    }
    offsets = arena.take({{batch}, DType::kI32});
  });
  arena_.clear();
}

std::int64_t DecodeState::longest() const { return *std::max_element(seen.begin(), seen.end()); }

void DecodeState::restart() {
  arena_.clear();
  std::fill(seen.begin(), seen.end(), 0);
}

}  // namespace carope
