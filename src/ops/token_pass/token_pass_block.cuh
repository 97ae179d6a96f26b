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
    for (int i = 0; i < shape_.layers; ++i) {
      const LayerPointers& layer = layers_[i];
      gate_.prepare(layer);
      NormShare norm = norm_.share_of(layer.attention_norm);
      OwnRows rows = rows_of<kQkv>(layer);
      if (i == 0) {
        norm_.take(args_.embedding, norm, residual_);
      } else {
        norm_.receive(args_.residual, tag_, norm, residual_);
      }
      ++tag_;
      multiply<kQkv>(layer, rows, normed_, [&](int item, const float(&sums)[2]) {
        const std::uint32_t word = sum_of(sums, rows.biases);
        if (lane_ == 0) {
          publish(args_.qkv + item / 2, word, tag_);
        }
      });
      gate_.run(normed_);  // while the words of all are on their way

      attention_.run(layer, gate_.turns(), tag_);
      if (units_[kAttentionOut].count() > 0) {
        rows = rows_of<kAttentionOut>(layer);
        if (part_.parts == 1) {
          receive(args_.attended, width_, attended_);
        } else {
          attention_.join_parts(attended_, tag_);
        }
        sync_pass();
        multiply<kAttentionOut>(layer, rows, attended_, [&](int item, const float(&sums)[2]) {
          publish_copies(args_.middle, item / 2,
                         sum_of(sums, rows.biases, pair_at(residual_ + item)));
        });
      }

      norm = norm_.share_of(layer.mlp_norm);
      rows = rows_of<kMlpIn>(layer);
      norm_.receive(args_.middle, tag_, norm, middle_);
      multiply<kMlpIn>(layer, rows, normed_, [&](int item, const float(&sums)[2]) {
        publish_copies(args_.hidden, item / 2, gelu_of_pair(sum_of(sums, rows.biases)));
      });
      // While others still compute what this block waits for.
      gate_.store(layer);
      if (i + 1 < shape_.layers) {
        attention_.prepare(layers_[i + 1]);
      }
      if (units_[kMlpOut].count() > 0) {
        finish_layer(layer);
      }
    }
    const NormShare norm = norm_.share_of(args_.final_norm);
    norm_.receive(args_.residual, tag_, norm, residual_);
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

  /// The items that a warp has of a matrix, and what it knows of the first two before it has what
  /// to multiply them by.
  struct OwnRows {
    Range items;
    std::uint32_t biases;
    Row weights[2][kVectors];
  };

  __device__ PassBlock(const PassArgs& args, std::byte* shared, const PassMemory& at)
      : args_(args),
        shape_(args.shape),
        width_(shape_.width),
        ended_(*args.ended != 0),
        thread_(static_cast<int>(threadIdx.x)),
        lane_(thread_ % static_cast<int>(kWarp)),
        warp_(thread_ / static_cast<int>(kWarp)),
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
        gate_(args, part_, ring_of(args, shape_, shared, at, kPassWarps)),
        bringer_(args, shared, at, part_),
        weights_(ring_of(args, shape_, shared, at, warp_)) {
    auto* const tag = reinterpret_cast<std::uint32_t*>(shared + at.tag);
    if (thread_ == 0) {
      *tag =
          *args.last_tag;  // by one thread: the block has read it once any of its threads goes on
    }
    share_out();
    CopyRing::init_barriers(shared + at.barriers, kPassWarps * args.slots + 1);
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

  // Two bf16 in a word.
  __device__ static void unpack_pair(std::uint32_t word, float (&values)[2]) {
    values[0] = __uint_as_float(word << 16);
    values[1] = __uint_as_float(word & 0xFFFF0000);
  }
  __device__ static std::uint32_t pair_at(const bf16* from) {
    return *reinterpret_cast<const std::uint32_t*>(from);
  }

  /// Asks for the biases of the first two items, but of parts of rows, and takes their weights.
  template <Matrix kMatrix>
  __device__ void know_rows(const LayerPointers& layer, OwnRows& rows) {
    if constexpr (row_items(kMatrix) == 1) {
      rows.biases = pair_at(layer.biases[kMatrix] + rows.items.first);
    }
    if constexpr (kRowsAhead) {
      take_rows(rows.weights);
    }
  }
  template <Matrix kMatrix>
  __device__ OwnRows rows_of(const LayerPointers& layer) {
    OwnRows rows{.items = items_of(kMatrix)};
    if (rows.items.count() > 0) {
      know_rows<kMatrix>(layer, rows);
    }
    return rows;
  }
  /// The sums of two rows with what is added to them.
  __device__ static std::uint32_t sum_of(const float (&sums)[2], std::uint32_t biases,
                                         std::uint32_t residuals = 0) {
    float bias[2], residual[2];
    unpack_pair(biases, bias);
    unpack_pair(residuals, residual);
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

  /// By lanes that have sums.
  __device__ void publish_copies(const CopiedWords& to, int at, std::uint32_t value) const {
    static_assert(kCopies <= kSumLanes);
    if (sum_lane_ < kCopies) {
      publish(to.copy(sum_lane_) + at, value, tag_);
    }
  }

  /// Waits for `count` bf16 and puts them into shared memory.
  __device__ void receive(const CopiedWords& words, int count, bf16* to) const {
    constexpr int kAtOnce = 2;
    constexpr int kElements = 4;  // of two words
    for (int begin = thread_ * kElements; begin < count;
         begin += kAtOnce * kPassThreads * kElements) {
      std::uint32_t values[kAtOnce][2];
      const auto element = [&](int i) { return begin + i * kPassThreads * kElements; };
      await(
          tag_, values, [&](int i) { return words.own() + element(i) / 2; },
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

  /// Calls finish(item, sums) with the products of this warp's items of a matrix and their parts of
  /// x, two at a time. `rows` goes on with them.
  template <Matrix kMatrix, class Finish>
  __device__ void multiply(const LayerPointers& layer, OwnRows& rows, const bf16* x,
                           const Finish& finish) {
    constexpr int kEach = row_items(kMatrix);
    int& item = rows.items.first;
    if (rows.items.count() == 0) {
      return;
    }
    Row vectors[kVectors];
    load_vectors(x + item / 2 % kEach * width_, vectors);
    while (true) {
      if constexpr (!kRowsAhead) {
        take_rows(rows.weights);
      }
      float sums[2];
      multiply_rows(rows.weights, vectors, sums);
      finish(item, sums);
      item += 2;
      if (rows.items.count() == 0) {
        return;
      }
      know_rows<kMatrix>(layer, rows);
      if constexpr (kEach > 1) {
        load_vectors(x + item / 2 % kEach * width_, vectors);
      }
    }
  }

  /// The MLP's last matrix: its rows are so long that several warps share each pair of them.
  __device__ void finish_layer(const LayerPointers& layer) {
    constexpr int kEach = row_items(kMlpOut);
    const Range pairs = units_[kMlpOut];
    const int first_item = pairs.first * unit_items(kMlpOut);
    const auto biases_at = [&](int i) {
      return pair_at(layer.biases[kMlpOut] + (pairs.first + i / kCopies) * 2);
    };
    const int results = pairs.count() * kCopies;
    const std::uint32_t biases = thread_ < results ? biases_at(thread_) : 0;
    OwnRows rows = rows_of<kMlpOut>(layer);
    receive(args_.hidden, 4 * width_, hidden_);
    sync_pass();
    multiply<kMlpOut>(layer, rows, hidden_, [&](int item, const float(&sums)[2]) {
      if (lane_ == 0) {
        sums_[item - first_item] = sums[0];
        sums_[item - first_item + 1] = sums[1];
      }
    });
    sync_pass();
    for (int i = thread_; i < results; i += kPassThreads) {
      const int pair = i / kCopies;
      const float* parts = sums_ + pair * 2 * kEach;
      float sums[2] = {parts[0], parts[1]};
#pragma unroll
      for (int k = 1; k < kEach; ++k) {
        sums[0] += parts[2 * k];
        sums[1] += parts[2 * k + 1];
      }
      const int row = (pairs.first + pair) * 2;
      publish(args_.residual.copy(i % kCopies) + row / 2,
              sum_of(sums, i == thread_ ? biases : biases_at(i), pair_at(middle_ + row)), tag_);
    }
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
