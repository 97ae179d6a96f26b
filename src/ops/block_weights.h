#pragma once

#include "core/context.h"

namespace carope {

/// Logits of a block; the last may have fewer.
inline constexpr std::int64_t kWeightBlock = 64;

inline std::int64_t weight_blocks(std::int64_t logits) {
  return (logits + kWeightBlock - 1) / kWeightBlock;
}

/// What choosing among many logits needs to know of each block of them.
struct BlockWeight {
  double highest;  // NaN where a logit is not finite
  double sum;      // of e^((logit - highest) / temperature)
};

/// logits [n] f32, weights [weight_blocks(n), 2] f64: a BlockWeight each.
void block_weights(Context& ctx, const Tensor& logits, double temperature, const Tensor& weights);

}  // namespace carope
