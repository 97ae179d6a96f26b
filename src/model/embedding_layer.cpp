#include "model/embedding_layer.h"

#include "ops/sinusoid.h"

namespace carope {

EmbeddingLayer::EmbeddingLayer(const Encoding& encoding, Device device) {
  if (!encoding.additive) {
    return;
  }
  learned_ = std::holds_alternative<LearnedPositions>(*encoding.additive);
  if (const auto* sinusoids = std::get_if<Sinusoids>(&*encoding.additive)) {
    sinusoid_scale_ = sinusoids->scale;
    sinusoid_increments_ = upload(device, sinusoids->increments, memory_);
  }
}

void EmbeddingLayer::forward(Context& ctx, const Sequence& seq, const Tensor& tokens,
                             const Tensor& table, const Tensor& positions, const Tensor& x) const {
  embedding(ctx, tokens, table, x);
  if (learned_) {
    add_positions(ctx, seq, positions, x);
  } else if (sinusoid_increments_) {
    add_sinusoid(ctx, seq, sinusoid_increments_, sinusoid_scale_, x);
  }
}

void EmbeddingLayer::backward(Context& ctx, const Sequence& seq, const Tensor& tokens,
                              const Tensor& dx, const Tensor& dtable, const Tensor& dpositions,
                              Write write) const {
  if (learned_) {
    add_positions_backward(ctx, seq, dx, dpositions, write);
  }
  embedding_backward(ctx, tokens, dx, dtable);
}

}  // namespace carope
