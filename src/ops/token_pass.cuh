#pragma once

#include "ops/copy_ring.cuh"
#include "ops/grid_barrier.cuh"
#include "ops/rotate.cuh"

// What the kernel of a token pass works on. The grid is one block a multiprocessor, and all blocks
// go through the same phases. In each a block has some rows of a weight matrix, the same in every
// layer, and its warps have those rows, or quarters of the long ones, as items of C columns.
namespace carope::cuda {

/// Twelve warps: the many rows of the MLP are two items for each where the usual model has them on
/// 132 multiprocessors, and there are registers enough.
inline constexpr int kPassThreads = 384;
inline constexpr int kStepColumns = 256;  // of the bf16 vectors that a warp takes at once
inline constexpr int kLaneColumns = 8;    // of one of these, in a lane

enum Matrix : std::uint8_t { kQkv, kAttentionOut, kMlpIn, kMlpOut, kClassifier };
inline constexpr int kLayerMatrices = 4;
inline constexpr int kMatrices = 5;

struct NormPointers {
  const float* gain;   // [C]
  const float* shift;  // [C]
};

struct LayerPointers {
  const bf16* weights[kLayerMatrices];  // of each Matrix
  const bf16* biases[kLayerMatrices];
  NormPointers attention_norm, mlp_norm;
  bf16* keys;                // [capacity, C]
  bf16* values;              // [capacity, C]
  const float* gate_weight;  // [H, C] or null
  const float* gate_bias;    // [H] or null
  std::uint32_t* phases;     // [H, P] or null
};

struct PassShape {
  int width, heads, dim, layers, vocabulary;

  __host__ __device__ int pairs() const { return dim / 2; }
  __host__ __device__ int rows(int matrix) const {
    constexpr int kOfWidth[kLayerMatrices] = {3, 1, 4, 1};
    return matrix == kClassifier ? vocabulary : kOfWidth[matrix] * width;
  }
  /// Items of a row.
  __host__ __device__ static constexpr int items(int matrix) { return matrix == kMlpOut ? 4 : 1; }
};

struct PassArgs {
  PassShape shape;
  HeadShape head;
  const LayerPointers* layers;
  NormPointers final_norm;
  const bf16* classifier;           // [V, C]
  const float* slopes;              // [H] or null
  float scale;                      // of scores
  const std::uint32_t* increments;  // [P] or null
  bool has_gate;
  bool gate_reads_embedding;
  int exponent_start;
  int most_parts;  // that the keys of a head are split into
  int slots;       // of a warp's ring

  // What blocks tell each other.
  unsigned* barrier;   // zero before the first launch
  bf16* residual;      // [C]
  bf16* qkv;           // [3C]
  bf16* hidden;        // [4C]
  float* gate_logits;  // [H]
  float* part_max;     // [parts, H]
  float* part_sum;     // [parts, H]
  float* part_out;     // [parts, C]

  // The token.
  const bf16* embedding;         // [C]
  const std::int32_t* position;  // [1]
  float* logits;                 // [V]
};

struct Range {
  int first, last;

  __host__ __device__ int count() const { return last - first; }
  /// Part `index` of `parts` nearly equal ones.
  __host__ __device__ Range part(int index, int parts) const {
    return {first + static_cast<int>(static_cast<std::int64_t>(count()) * index / parts),
            first + static_cast<int>(static_cast<std::int64_t>(count()) * (index + 1) / parts)};
  }
};

/// Where a block's shared memory has what. Only the first and the last are larger than a few kB.
struct PassMemory {
  int stage;   // a phase's input [4C] bf16, or the warps' parts of attention [warps, 2 + D] f32
  int head;    // q f32 [D], then k and v bf16 [D] of the head that a block attends for
  int layers;  // LayerPointers [layers]
  int rows;    // Range [kMatrices]: the block's
  int items;   // Range [warps, kMatrices]
  int sums;    // f32, of the items of a block, but for the classifier's
  int gate;    // [C] f32: a row of the gate's weights
  int barriers;
  int slots;  // [warps, slots, C] bf16
  int bytes;

  __host__ __device__ PassMemory(const PassShape& shape, int blocks, int warps, int slot_count) {
    int most_items = 0;
    for (int m = 0; m < kLayerMatrices; ++m) {
      const int most_rows = (shape.rows(m) + blocks - 1) / blocks;
      const int count = most_rows * PassShape::items(m);
      most_items = count > most_items ? count : most_items;
    }
    const int input = 4 * shape.width * static_cast<int>(sizeof(bf16));
    const int parts = warps * (2 + shape.dim) * static_cast<int>(sizeof(float));
    bytes = 0;
    stage = take(input > parts ? input : parts);
    head = take(shape.dim * static_cast<int>(sizeof(float) + 2 * sizeof(bf16)));
    layers = take(shape.layers * static_cast<int>(sizeof(LayerPointers)));
    rows = take(kMatrices * static_cast<int>(sizeof(Range)));
    items = take(warps * kMatrices * static_cast<int>(sizeof(Range)));
    sums = take(most_items * static_cast<int>(sizeof(float)));
    gate = take(shape.width * static_cast<int>(sizeof(float)));
    barriers = take((1 + warps * slot_count) * CopyRing::kBarrierBytes);
    slots = take(warps * slot_count * shape.width * static_cast<int>(sizeof(bf16)));
  }

 private:
  __host__ __device__ int take(int count) {
    constexpr int kAlignment = 128;
    const int at = bytes;
    bytes += (count + kAlignment - 1) / kAlignment * kAlignment;
    return at;
  }
};

}  // namespace carope::cuda
