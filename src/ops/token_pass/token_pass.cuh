#pragma once

#include "ops/cuda/copy_ring.cuh"
#include "ops/cuda/rotate.cuh"
#include "ops/token_pass/tagged_words.cuh"

// What the kernel of a token pass works on. The grid is one block a multiprocessor, and all blocks
// go through the same phases. In each a block has some pairs of rows of a weight matrix, the same
// in every layer, as a word has room for the results of two; and its warps have those pairs, or
// quarters of the long ones, as two items of C columns each.
namespace carope::cuda {

/// Twelve warps: the many rows of the MLP are a pair for each where the usual model has them on 132
/// multiprocessors, and there are registers enough.
inline constexpr int kPassThreads = 384;
inline constexpr int kPassWarps = kPassThreads / static_cast<int>(kWarp);
inline constexpr int kBlockThreads = kPassThreads + static_cast<int>(kWarp);  // one warp brings
inline constexpr int kStepColumns = 256;  // of the bf16 vectors that a warp takes at once
inline constexpr int kLaneColumns = 8;    // of one of these, in a lane
inline constexpr int kNormColumns = 128;  // that a warp normalises at once
inline constexpr int kMostWidth = 2048;

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
  NormPointers norms[2];     // of attention and of the MLP
  bf16* keys;                // [capacity, C]
  bf16* values;              // [capacity, C]
  const float* gate_weight;  // [H, C] or null
  const float* gate_bias;    // [H] or null
  std::uint32_t* phases;     // [H, P] or null
};

struct PassShape {
  int width, heads, dim, layers, vocabulary;
};

/// A shape as a kernel sees it whose code is for all widths up to some vectors of kStepColumns.
template <int kMostVectors>
struct AnyShape : PassShape {
  static constexpr int kVectors = kMostVectors;

  __host__ __device__ explicit AnyShape(const PassShape& shape) : PassShape(shape) {}
  static bool serves(const PassShape& shape) { return shape.width <= kVectors * kStepColumns; }
};

/// A shape that a kernel was compiled for: the code that each layer runs through is a third
/// shorter.
template <int kWidth, int kHeads>
struct KnownShape {
  static constexpr int width = kWidth, heads = kHeads, dim = kWidth / kHeads;
  static constexpr int kVectors = (kWidth + kStepColumns - 1) / kStepColumns;
  int layers, vocabulary;

  __host__ __device__ explicit KnownShape(const PassShape& shape)
      : layers(shape.layers), vocabulary(shape.vocabulary) {}
  static bool serves(const PassShape& shape) {
    return shape.width == width && shape.heads == heads && shape.dim == dim;
  }
};

/// Whether a matrix is multiplied by a norm's result, the layer's norm number matrix / 2.
__host__ __device__ constexpr bool has_norm(int matrix) {
  return matrix == kQkv || matrix == kMlpIn;
}
/// Items of a row.
__host__ __device__ constexpr int row_items(int matrix) { return matrix == kMlpOut ? 4 : 1; }
/// Items of a row, or of a pair of rows, whose results are published together.
__host__ __device__ constexpr int unit_items(int matrix) {
  return matrix == kClassifier ? 1 : 2 * row_items(matrix);
}
/// Rows of the classifier, or pairs of rows of another matrix.
template <class Shape>
__host__ __device__ int units_of(const Shape& shape, int matrix) {
  const int of_width = matrix == kQkv ? 3 : matrix == kMlpIn ? 4 : 1;
  return matrix == kClassifier ? shape.vocabulary : of_width * shape.width / 2;
}

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

  // What blocks tell each other. A layer's words have the tag of the layer, and its places serve
  // every layer: no block is a layer ahead of another, see PassBlock.
  std::uint32_t* last_tag;  // of the launch before; zero, as all words, before the first
  CopiedWords qkv;          // [3C / 2] two bf16 each; only one copy, as few blocks read a word
  // What each matrix is multiplied by, two bf16 each. By number, so that one piece of code serves
  // all matrices: [C / 2] the residual before the layer; [C / 2] what attention has found, if the
  // keys of a head are one part; [C / 2] the residual after attention; [4C / 2] the hidden layer.
  CopiedWords inputs[kLayerMatrices];
  CopiedWords part_softmax;  // [parts, H, 2] max and sum, if the keys of a head are several parts
  CopiedWords part_out;      // [parts, C]

  // The token.
  const bf16* embedding;         // [C]
  const std::int32_t* position;  // [1]
  const std::int32_t* ended;     // [1]
  float* logits;                 // [V]
};

/// How many keys each of a block's threads has its columns of at once: fewer where weights are
/// wide.
__host__ __device__ constexpr int keys_at_once(int vectors) { return vectors <= 4 ? 4 : 2; }

/// The keys that a block attends to of a token at `position`, of a head's that are `parts` parts.
struct TokenPart {
  int head = -1;  // none
  int index = 0;
  int first = 0, last = 0;
  int position, parts;

  template <class Shape>
  __device__ static TokenPart of(const PassArgs& args, const Shape& shape) {
    const int groups = kPassThreads / (shape.dim / kLaneColumns);
    const int round_keys = keys_at_once(Shape::kVectors) * groups;
    TokenPart part{.position = *args.position};
    const int rounds = part.position / round_keys + 1;
    const int part_keys = (rounds + args.most_parts - 1) / args.most_parts * round_keys;
    part.parts = part.position / part_keys + 1;
    if (const auto block = static_cast<int>(blockIdx.x); block < shape.heads * part.parts) {
      part.head = block / part.parts;
      part.index = block % part.parts;
      part.first = part.index * part_keys;
      part.last = min(part.first + part_keys, part.position + 1);
    }
    return part;
  }

  __device__ bool works() const { return head >= 0; }
  /// Whether the token's own key is among them, the last, which is not in the cache yet.
  __device__ bool has_token() const { return last > position; }
  __device__ int cached() const { return min(last, position); }  // the end of the others
};

/// How far the pairs turn that a lane of a block's first warp has.
inline constexpr int kLanePairs = 2;
struct PairTurns {
  std::uint32_t turns[kLanePairs];
  float logit;  // of the gate
};

/// Two values as bf16 in a word.
__device__ inline std::uint32_t packed_pair(float first, float second) {
  const Vec<bf16, 2> pair = pack<bf16>({first, second});
  std::uint32_t word;
  memcpy(&word, &pair, sizeof(word));
  return word;
}

/// Waits for all threads of the block but those of the warp that brings weights.
__device__ inline void sync_pass() { wait_at<kPassThreads>(1); }

struct Range {
  int first, last;

  __host__ __device__ int count() const { return last - first; }
  /// Part `index` of `parts` nearly equal ones. The count times the parts is less than 2^31.
  __host__ __device__ Range part(int index, int parts) const {
    return {first + count() * index / parts, first + count() * (index + 1) / parts};
  }
};

/// Where a block's shared memory has what. Only `cached` and the last are larger than a few kB.
/// Inputs of phases lie apart, as warps of a block may be in different ones.
struct PassMemory {
  int residual;  // bf16 [C] before a layer
  int middle;    // bf16 [C] the residual after its attention
  int normed;    // bf16 [C]
  int moments;   // f32 [kMostWidth / kNormColumns, 2]: of what warps normalise
  int attended;  // bf16 [C]
  int hidden;    // bf16 [4C]
  int head;      // bf16 [3, D]: q, k and v of the head that a block attends for
  int parts;     // f32 [warps, 3 + D]: the warps' parts of attention
  int cached;    // bf16 [2, keys_at_once(), threads, kLaneColumns] keys and values
  int units;     // Range [kMatrices]: the block's
  int items;     // Range [warps, kMatrices]
  int tag;       // u32
  int gate;      // [C] f32: a row of the gate's weights
  int gate_barriers;
  // From here on no kernel knows them when it is compiled.
  int layers;  // LayerPointers [layers]
  int sums;    // f32 of the MLP's last items
  int barriers;
  int slots;  // [warps, slots, C] bf16
  int bytes;

  template <class Shape>
  __host__ __device__ PassMemory(const Shape& shape, int blocks, int slot_count) {
    constexpr int kFloat = sizeof(float);
    constexpr int kRange = sizeof(Range);
    const int row = shape.width * static_cast<int>(sizeof(bf16));
    const int most_units = (units_of(shape, kMlpOut) + blocks - 1) / blocks;
    bytes = 0;
    residual = take(row);
    middle = take(row);
    normed = take(row);
    moments = take(kMostWidth / kNormColumns * 2 * kFloat);
    attended = take(row);
    hidden = take(4 * row);
    head = take(3 * shape.dim * static_cast<int>(sizeof(bf16)));
    parts = take(kPassWarps * (3 + shape.dim) * kFloat);
    cached = take(2 * keys_at_once((shape.width + kStepColumns - 1) / kStepColumns) * kPassThreads *
                  kLaneColumns * static_cast<int>(sizeof(bf16)));
    units = take(kMatrices * kRange);
    items = take(kPassWarps * kMatrices * kRange);
    tag = take(static_cast<int>(sizeof(std::uint32_t)));
    gate = take(shape.width * kFloat);
    gate_barriers = take(CopyRing::kBarrierBytes);
    layers = take(shape.layers * static_cast<int>(sizeof(LayerPointers)));
    sums = take(most_units * unit_items(kMlpOut) * kFloat);
    barriers = take(kPassWarps * slot_count * CopyRing::kBarrierBytes);
    slots = take(kPassWarps * slot_count * row);
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
