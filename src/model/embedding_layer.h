#pragma once

#include "core/arena.h"
#include "ops/embedding.h"
#include "position/encoding.h"

namespace carope {

/// The embedding of tokens, with the additive part of the encoding.
class EmbeddingLayer {
 public:
  EmbeddingLayer(const Encoding& encoding, Device device);

  /// x [B, T, C] = table[tokens] + what the encoding adds. `positions` is LearnedPositions' table.
  void forward(Context& ctx, const Sequence& seq, const Tensor& tokens, const Tensor& table,
               const Tensor& positions, const Tensor& x) const;
  /// Adds to dtable; writes dpositions.
  void backward(Context& ctx, const Sequence& seq, const Tensor& tokens, const Tensor& dx,
                const Tensor& dtable, const Tensor& dpositions, Write write) const;

 private:
  bool learned_ = false;
  float sinusoid_scale_ = 0.0F;
  Memory memory_;
  Tensor sinusoid_increments_;  // [C/2] u32, or empty
};

}  // namespace carope
