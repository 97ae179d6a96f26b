#pragma once

#include "ops/matmul/gelu.cuh"
#include "ops/token_pass/token_attention.cuh"
#include "ops/token_pass/token_bringer.cuh"
#include "ops/token_pass/token_gate.cuh"
#include "ops/token_pass/token_norm.cuh"

namespace carope::cuda {

/// A block's part of a token pass. Weights do not depend on the token: one warp brings the others
/// their rows while blocks wait for each other. What else a phase needs of what is known before, a
/// thread reads before it waits.
///
/// Why every layer may use the same places for its words: every block has rows of the MLP's first
/// matrix, and publishes theirs when it has read all the words that it needs of those before. Any
/// word of the next layer comes after all words of the MLP's results, each of which comes after all
/// those of its hidden layer: so after every block has read everything up to there. Hidden words
/// are read by blocks that then publish results of the MLP, and results before hidden words. By the
/// same, what a head's clock showed before is overwritten when all that wait for it have read it.
template <class Shape>
class PassBlock {
 public:
  __device__ PassBlock(const PassArgs& args, std::byte* shared)
      : PassBlock(args, shared,
                  PassMemory(Shape(args.shape), static_cast<int>(gridDim.x), args.slots)) {}

  __device__ void run() {
    if (ended_) {
      return;
    }
    if (warp_ == kPassWarps) {
      bringer_.run();
      return;
    }
    attention_.prepare(layers_[0]);
    norm_.take(args_.embedding, norm_.share_of(layers_[0].norms[0]), residual_);
#pragma unroll 1
    for (int step = 0; step < kLayerMatrices * shape_.layers; ++step) {
      run_step(step);
    }
    const NormShare norm = norm_.share_of(args_.final_norm);
    norm_.receive(args_.inputs[kQkv], tag_, norm, residual_);
    if (blockIdx.x == 0 && thread_ == 0) {
      *args_.last_tag = tag_;  // all blocks have read it: what was received comes from all
    }
    classify();
  }

 private:
  static constexpr int kVectors = Shape::kVectors;
  static constexpr bool kRowsAhead = kVectors <= 4;  // whether there are registers for them
  static constexpr int kSumLanes = 8;  // lanes 4 n + n / 2, which have the diagonal of products
  static constexpr int kSumStep = 4;   // from one to the next of the other parity

  using Row = RawRow<bf16, kLaneColumns>;  // a lane's share of one
  using NormShare = typename TokenNorm<Shape>::Share;

  /// What a thread knows of two rows before it has their sums.
  struct Known {
    std::uint32_t biases, residuals;  // that are added, two bf16 each
    TaggedWord* to;                   // where the results go; null if others publish them
  };

  __device__ PassBlock(const PassArgs& args, std::byte* shared, const PassMemory& at)
      : args_(args),
        shape_(args.shape),
        width_(shape_.width),
        ended_(*args.ended != 0),
        thread_(static_cast<int>(threadIdx.x)),
        lane_(static_cast<int>(threadIdx.x % kWarp)),
        warp_(static_cast<int>(threadIdx.x / kWarp)),
        sum_lane_(lane_ % 4 == lane_ / 8 ? lane_ / 4 : kSumLanes),
        residual_(reinterpret_cast<bf16*>(shared + at.residual)),
        middle_(reinterpret_cast<bf16*>(shared + at.middle)),
        normed_(reinterpret_cast<bf16*>(shared + at.normed)),
        attended_(reinterpret_cast<bf16*>(shared + at.attended)),
        hidden_(reinterpret_cast<bf16*>(shared + at.hidden)),
        layers_(reinterpret_cast<LayerPointers*>(shared + at.layers)),
        units_(reinterpret_cast<Range*>(shared + at.units)),
        items_(reinterpret_cast<Range*>(shared + at.items)),
        sums_(reinterpret_cast<float*>(shared + at.sums)),
        part_(TokenPart::of(args, shape_)),
        norm_(args, normed_, shared, at),
        attention_(args, part_, shared, at),
        gate_(args, part_, ring_of_gate(shape_, shared, at)),
        bringer_(args, shared, at, part_),
        weights_(ring_of_warp(args, shape_, shared, at, warp_)) {
    auto* const tag = reinterpret_cast<std::uint32_t*>(shared + at.tag);
    if (thread_ == 0) {
      *tag =
          *args.last_tag;  // by one thread: the block has read it once any of its threads goes on
    }
    share_out();
    CopyRing::init_barriers(shared + at.barriers, kPassWarps * args.slots);
    CopyRing::init_barriers(shared + at.gate_barriers, 1);
    __syncthreads();
    tag_ = *tag;
  }

  /// Copies the table of layers, and finds which rows and items are whose.
  __device__ void share_out() {
    using Word = std::uint64_t;
    static_assert(sizeof(LayerPointers) % sizeof(Word) == 0);
    const int words = shape_.layers * static_cast<int>(sizeof(LayerPointers) / sizeof(Word));
    for (int i = thread_; i < words; i += kBlockThreads) {
      reinterpret_cast<Word*>(layers_)[i] = reinterpret_cast<const Word*>(args_.layers)[i];
    }
    for (int i = thread_; i < kPassWarps * kMatrices; i += kBlockThreads) {
      const int matrix = i % kMatrices;
      const Range units = Range{0, units_of(shape_, matrix)}.part(static_cast<int>(blockIdx.x),
                                                                  static_cast<int>(gridDim.x));
      // Few of a block's warps have rows after attention: those that have the fewest before it.
      const int warp = i / kMatrices;
      const int turn = matrix == kAttentionOut ? kPassWarps - 1 - warp : warp;
      // What one warp computes at once: two items, but for the classifier.
      const int together = matrix == kClassifier ? 1 : 2;
      const int each = unit_items(matrix) / together;
      const Range items = Range{units.first * each, units.last * each}.part(turn, kPassWarps);
      items_[i] = {items.first * together, items.last * together};
      if (i < kMatrices) {
        units_[matrix] = units;
      }
    }
  }
  __device__ Range items_of(Matrix matrix) const { return items_[warp_ * kMatrices + matrix]; }

  /// Of a number that is not negative, which the compiler does not know.
  __device__ static int half_of(int number) { return number >> 1; }

  // Two bf16 in a word.
  __device__ static void unpack_pair(std::uint32_t word, float (&values)[2]) {
    values[0] = __uint_as_float(word << 16);
    values[1] = __uint_as_float(word & 0xFFFF0000);
  }
  __device__ static std::uint32_t pair_at(const bf16* from) {
    return *reinterpret_cast<const std::uint32_t*>(from);
  }

  /// The sums of two rows with what is added to them.
  __device__ static std::uint32_t sum_of(const float (&sums)[2], const Known& known) {
    float bias[2], residual[2];
    unpack_pair(known.biases, bias);
    unpack_pair(known.residuals, residual);
    return packed_pair(sums[0] + bias[0] + residual[0], sums[1] + bias[1] + residual[1]);
  }

  /// By lanes that have sums: half of them compute one value, half the other.
  __device__ std::uint32_t gelu_of_pair(std::uint32_t pair) const {
    const bool second = sum_lane_ % 2 == 1;
    float y[2];
    unpack_pair(pair, y);
    const float own = gelu_of(second ? y[1] : y[0]);
    const float other = __shfl_xor_sync(kAllLanes, own, kSumStep);
    return second ? packed_pair(other, own) : packed_pair(own, other);
  }

  /// Waits for what attention or the hidden layer has found, and puts it into shared memory.
  __device__ void receive(const CopiedWords& words, Matrix matrix) const {
    const int count = matrix == kMlpOut ? 4 * width_ : width_;
    bf16* to = matrix == kMlpOut ? hidden_ : attended_;
    constexpr int kAtOnce = 2;
    constexpr int kElements = 4;  // of two words
#pragma unroll 1
    for (int begin = thread_ * kElements; begin < count;
         begin += kAtOnce * kPassThreads * kElements) {
      std::uint32_t values[kAtOnce][2];
      const auto element = [&](int i) { return begin + i * kPassThreads * kElements; };
      await(
          tag_, values, [&](int i) { return words.own(element(i) / 2); },
          [&](int i) { return element(i) < count; });
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (element(i) < count) {
          const Vec<std::uint32_t, 2> pair{{values[i][0], values[i][1]}};
          pair.store(reinterpret_cast<std::uint32_t*>(to + element(i)));
        }
      }
    }
  }

  template <class Visit>
  __device__ void for_each_vector(const Visit& visit) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int column = i * kStepColumns + lane_ * kLaneColumns;
      if (column < width_) {
        visit(i, column);
      }
    }
  }
  __device__ void load_vectors(const bf16* from, Row (&x)[kVectors]) const {
    for_each_vector([&](int i, int column) { x[i] = Row::load(from + column); });
  }

  /// The next kRows rows of the ring, and zeros for the others; the ring goes on.
  template <int kRows = 2>
  __device__ void take_rows(Row (&rows)[2][kVectors]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const auto* row = r < kRows ? reinterpret_cast<const bf16*>(weights_.wait(r)) : nullptr;
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        const int column = i * kStepColumns + lane_ * kLaneColumns;
        rows[r][i] = r < kRows && column < width_ ? Row::load(row + column) : Row{};
      }
    }
    weights_.template give_back<kRows>();
  }

  /// The products of x and two rows, in lanes that have sums. Tensor cores multiply what each four
  /// lanes have of the rows by what each four have of x. Of that only the diagonal is of use, the
  /// products of the same columns; but to take numbers apart and multiply them one by one would
  /// take three times the instructions. The eight lanes that have the diagonal add it up among
  /// them.
  __device__ void multiply_rows(const Row (&rows)[2][kVectors], const Row (&x)[kVectors],
                                float (&sums)[2]) const {
    float products[2][4] = {};
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const bool exists = i * kStepColumns + lane_ * kLaneColumns < width_;
      const Row own = exists ? x[i] : Row{};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const auto word = [&](const Row& row, int index) { return row.words.at[2 * half + index]; };
        multiply_add(products[half],
                     Fragment{{word(rows[0][i], 0), word(rows[1][i], 0), word(rows[0][i], 1),
                               word(rows[1][i], 1)}},
                     word(own, 0), word(own, 1));
      }
    }
    const bool odd = lane_ / 4 % 2 == 1;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int column = 2 * r;
      sums[r] = odd ? products[0][column + 1] + products[1][column + 1]
                    : products[0][column] + products[1][column];
    }
#pragma unroll
    for (const int step : {kSumStep, 9, 18}) {  // between these lanes only
#pragma unroll
      for (float& sum : sums) {
        sum += __shfl_xor_sync(kAllLanes, sum, step);
      }
    }
  }

  /// One of the matrices of all layers, and what comes before it. All take the same way through
  /// the same code: as much as all steps of a layer have is to stay in the instruction cache.
  __device__ void run_step(int step) {
    const int index = step / kLayerMatrices;
    const LayerPointers& layer = layers_[index];
    const auto matrix = static_cast<Matrix>(step % kLayerMatrices);
    if (matrix == kQkv) {
      ++tag_;
      gate_.prepare(layer);
    } else if (matrix == kAttentionOut) {
      gate_.run(index, normed_);  // while the words of all are on their way
      attention_.run(layer, gate_.turns(), tag_);
    } else if (matrix == kMlpOut) {
      // While others still compute what this block waits for.
      gate_.store(layer);
      if (index + 1 < shape_.layers) {
        attention_.prepare(layers_[index + 1]);
      }
    }
    if (has_norm(matrix) || units_[matrix].count() > 0) {
      multiply(layer, matrix, step == 0);  // the embedding is there
    }
  }

  /// The products of this warp's items of a matrix and their parts of its input, two at a time.
  __device__ void multiply(const LayerPointers& layer, Matrix matrix, bool has_input) {
    NormShare norm;
    if (has_norm(matrix)) {
      norm = norm_.share_of(layer.norms[matrix / 2]);
    }
    Range items = items_of(matrix);
    Known known;
#pragma unroll 1
    do {
      known = known_of(layer, matrix, matrix == kMlpOut ? joined_rows() : items);
      const bf16* input = input_of(matrix, items.first);
      float* part = part_of(items.first);
      Row weights[2][kVectors];
      if (kRowsAhead && items.count() > 0) {
        take_rows(weights);
      }
      if (!has_input) {
        receive_input(matrix, norm);
        has_input = true;
      }
      if (items.count() > 0) {
        float sums[2];
        multiply_items(weights, input, sums);
        if (matrix == kMlpOut) {
          keep_part(sums, part);
        } else {
          publish_sums(matrix, sums, known);
        }
      }
      items.first += 2;
    } while (items.count() > 0);
    if (matrix == kMlpOut) {
      join_parts(known);
    }
  }

  /// Of the first two of `rows`, if there are any. Asks for what is in memory.
  __device__ Known known_of(const LayerPointers& layer, Matrix matrix, const Range& rows) const {
    Known known{};
    if (rows.count() <= 0) {
      return known;
    }
    known.biases = pair_at(layer.biases[matrix] + rows.first);
    if (!has_norm(matrix)) {
      known.residuals = pair_at((matrix == kAttentionOut ? residual_ : middle_) + rows.first);
    }
    const CopiedWords& words =
        matrix == kQkv ? args_.qkv : args_.inputs[(matrix + 1) % kLayerMatrices];
    const int copy = matrix == kMlpOut ? static_cast<int>(threadIdx.x % kCopies) : sum_lane_;
    if (copy < (matrix == kQkv ? 1 : kCopies)) {
      known.to = words.at(copy, half_of(rows.first));
    }
    return known;
  }

  /// What an item is multiplied by.
  __device__ const bf16* input_of(Matrix matrix, int item) const {
    if (matrix == kMlpOut) {
      return hidden_ + half_of(item) % row_items(kMlpOut) * width_;
    }
    return has_norm(matrix) ? normed_ : attended_;
  }

  /// Waits for what a matrix is multiplied by, which is in shared memory then.
  __device__ void receive_input(Matrix matrix, const NormShare& norm) {
    const CopiedWords& words = args_.inputs[matrix];
    if (has_norm(matrix)) {
      const bool first = matrix == kQkv;  // its residual is of the layer before
      norm_.receive(words, first ? tag_ - 1 : tag_, norm, first ? residual_ : middle_);
      return;
    }
    if (matrix == kAttentionOut && part_.parts > 1) {
      attention_.join_parts(attended_, tag_);
    } else {
      receive(words, matrix);
    }
    sync_pass();
  }

  __device__ void multiply_items(Row (&weights)[2][kVectors], const bf16* input, float (&sums)[2]) {
    Row x[kVectors];
    load_vectors(input, x);
    if constexpr (!kRowsAhead) {
      take_rows(weights);
    }
    multiply_rows(weights, x, sums);
  }

  __device__ void publish_sums(Matrix matrix, const float (&sums)[2], const Known& known) const {
    std::uint32_t word = sum_of(sums, known);
    if (matrix == kMlpIn) {
      word = gelu_of_pair(word);
    }
    if (known.to != nullptr) {
      publish(known.to, word, tag_);
    }
  }

  // The MLP's last matrix has rows so long that several warps share each pair of them. Then each
  // thread adds up the parts of one pair, for one of the copies.
  __device__ Range joined_rows() const {
    const Range pairs = units_[kMlpOut];
    return {(pairs.first + static_cast<int>(threadIdx.x / kCopies)) * 2, pairs.last * 2};
  }
  __device__ float* part_of(int item) const {
    return sums_ + item - units_[kMlpOut].first * unit_items(kMlpOut);
  }
  __device__ void keep_part(const float (&sums)[2], float* part) const {
    if (lane_ == 0) {
      const Vec<float, 2> pair{{sums[0], sums[1]}};
      pair.store(part);
    }
  }
  __device__ void join_parts(const Known& known) const {
    constexpr int kEach = row_items(kMlpOut);
    sync_pass();
    if (known.to == nullptr) {
      return;
    }
    float parts[2 * kEach];
    load_floats(sums_ + static_cast<int>(threadIdx.x / kCopies) * 2 * kEach, parts);
    float sums[2] = {parts[0], parts[1]};
#pragma unroll
    for (int k = 1; k < kEach; ++k) {
      sums[0] += parts[2 * k];
      sums[1] += parts[2 * k + 1];
    }
    publish(known.to, sum_of(sums, known), tag_);
  }

  __device__ void classify() {
    const Range rows = items_of(kClassifier);
    Row weights[2][kVectors], x[kVectors];
    float sums[2];
    load_vectors(normed_, x);
    int row = rows.first;
    for (; row + 1 < rows.last; row += 2) {
      take_rows(weights);
      multiply_rows(weights, x, sums);
      if (sum_lane_ < 2) {
        args_.logits[row + sum_lane_] = sum_lane_ == 0 ? sums[0] : sums[1];
      }
    }
    if (row < rows.last) {
      take_rows<1>(weights);
      multiply_rows(weights, x, sums);
      if (sum_lane_ == 0) {
        args_.logits[row] = sums[0];
      }
    }
  }

  const PassArgs& args_;
  Shape shape_;
  int width_;
  bool ended_;
  int thread_, lane_, warp_;
  int sum_lane_;    // number among those that have sums; kSumLanes: none of them
  bf16* residual_;  // [C]
  bf16* middle_;    // [C]
  bf16* normed_;    // [C]
  bf16* attended_;  // [C]
  bf16* hidden_;    // [4C]
  LayerPointers* layers_;
  Range* units_;  // [kMatrices]
  Range* items_;  // [warps, kMatrices]
  float* sums_;
  TokenPart part_;
  TokenNorm<Shape> norm_;
  TokenAttention<Shape> attention_;
  TokenGate<Shape> gate_;
  TokenBringer<Shape> bringer_;
  CopyRing weights_;
  std::uint32_t tag_;  // of the words that are published
};

}  // namespace carope::cuda
