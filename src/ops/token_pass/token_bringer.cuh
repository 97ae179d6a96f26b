#pragma once

#include "ops/token_pass/token_pass.cuh"

namespace carope::cuda {

/// The ring of one of a block's warps, and the one of the gate's weights.
template <class Shape>
__device__ CopyRing ring_of_warp(const PassArgs& args, const Shape& shape, std::byte* shared,
                                 const PassMemory& at, int warp) {
  const int row = shape.width * static_cast<int>(sizeof(bf16));
  return {shared + at.slots + warp * args.slots * row,
          shared + at.barriers + warp * args.slots * CopyRing::kBarrierBytes, args.slots, row};
}
template <class Shape>
__device__ CopyRing ring_of_gate(const Shape& shape, std::byte* shared, const PassMemory& at) {
  return {shared + at.gate, shared + at.gate_barriers, 1,
          shape.width * static_cast<int>(sizeof(float))};
}

/// The warp of a block that brings weights: each of its lanes those of one ring, in the order of
/// all phases to come.
template <class Shape>
class TokenBringer {
 public:
  /// The tables of layers and items are in shared memory.
  __device__ TokenBringer(const PassArgs& args, std::byte* shared, const PassMemory& at,
                          const TokenPart& part)
      : args_(args),
        shape_(args.shape),
        layers_(reinterpret_cast<const LayerPointers*>(shared + at.layers)),
        items_(reinterpret_cast<const Range*>(shared + at.items) + lane() * kMatrices),
        gate_head_(args.has_gate ? part.head : -1),
        ring_(lane() < kPassWarps ? ring_of_warp(args, shape_, shared, at, lane())
                                  : ring_of_gate(shape_, shared, at)) {}

  /// Until there is no next row. Lanes look by turns whether they have a free slot, and none waits.
  __device__ void run() {
    const void* row = next();
    while (row != nullptr) {
      if (ring_.bring(row)) {
        row = next();
      }
    }
  }

 private:
  __device__ static int lane() { return static_cast<int>(threadIdx.x % kWarp); }

  /// The row that was not asked for yet; null after the last.
  __device__ const void* next() {
    return lane() < kPassWarps ? next_item() : lane() == kPassWarps ? next_gate() : nullptr;
  }

  /// Where an item of a matrix is, in rows of C. Of two items in a row the second is of the row
  /// below.
  __device__ static int place_of(int matrix, int item) {
    constexpr int kEach = row_items(kMlpOut);
    if (matrix != kMlpOut) {
      return item;
    }
    const int pair = item / (2 * kEach);
    const int quarter = item / 2 % kEach;
    return (2 * pair + item % 2) * kEach + quarter;
  }

  /// An item of the lane's warp.
  __device__ const void* next_item() {
    const int matrices = kLayerMatrices * shape_.layers;
    while (next_.first == next_.last) {
      if (matrix_ == matrices) {
        return nullptr;
      }
      ++matrix_;
      kind_ = matrix_ == matrices ? kClassifier : matrix_ % kLayerMatrices;
      weights_ = kind_ == kClassifier ? args_.classifier
                                      : layers_[matrix_ / kLayerMatrices].weights[kind_];
      next_ = items_[kind_];
    }
    return weights_ + static_cast<std::int64_t>(place_of(kind_, next_.first++)) * shape_.width;
  }

  /// The gate's weights of a layer. The count changes only where there is one: where it changed at
  /// the end, too, ptxas (12.9 to 13.4) computed every address from the count at the end.
  __device__ const void* next_gate() {
    if (gate_head_ < 0 || gate_layer_ == shape_.layers) {
      return nullptr;
    }
    return layers_[gate_layer_++].gate_weight +
           static_cast<std::int64_t>(gate_head_) * shape_.width;
  }

  const PassArgs& args_;
  Shape shape_;
  const LayerPointers* layers_;
  const Range* items_;  // [kMatrices] of the lane's warp
  int gate_head_;       // or -1
  CopyRing ring_;
  int gate_layer_ = 0;  // the next
  int matrix_ = -1;     // of all layers' one after another
  int kind_ = kQkv;
  const bf16* weights_ = nullptr;
  Range next_{0, 0};  // items of the matrix that are still to come
};

}  // namespace carope::cuda
