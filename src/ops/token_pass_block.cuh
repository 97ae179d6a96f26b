#pragma once

#include "ops/carope_scan.cuh"
#include "ops/gelu.cuh"
#include "ops/norm.h"
#include "ops/token_attention.cuh"

namespace carope::cuda {

/// Gain and shift of the columns that a thread normalises.
struct NormShare {
  float gain[kLaneColumns], shift[kLaneColumns];
};

/// What is added to a row's product.
struct RowExtras {
  float bias, residual;
};

/// A block's part of a token pass. Weights do not depend on the token: each warp's rows come to it
/// through a ring, in the order of all phases to come, while blocks wait for each other. What else
/// a phase needs of what is known before, a thread reads before it waits.
template <int kVectors>
class PassBlock {
 public:
  __device__ PassBlock(const PassArgs& args, std::byte* shared)
      : PassBlock(args, shared,
                  PassMemory(args.shape, static_cast<int>(gridDim.x),
                             static_cast<int>(blockDim.x / kWarp), args.slots)) {}

  __device__ void run() {
    const bf16* residual = args_.embedding;
    NormShare norm = share_of(layers_[0].attention_norm);
    RowExtras extras = extras_of<kQkv>(layers_[0], nullptr, lane_);
    for (int i = 0; i < args_.shape.layers; ++i) {
      const LayerPointers& layer = layers_[i];
      normalise(norm, residual);
      advance_phases(layer);
      multiply<kQkv>();
      store_rows<kQkv>(layer, nullptr, extras);
      attention_.prepare(layer);
      wait();

      attention_.run(layer);
      __syncthreads();
      arrive();
      extras = extras_of<kAttentionOut>(layer, residual, lane_);
      wait();

      attention_.join_parts(input_);
      __syncthreads();
      multiply<kAttentionOut>();
      store_rows<kAttentionOut>(layer, residual, extras);
      residual = args_.residual;
      norm = share_of(layer.mlp_norm);
      extras = extras_of<kMlpIn>(layer, nullptr, lane_);
      wait();

      normalise(norm, residual);
      multiply<kMlpIn>();
      store_rows<kMlpIn>(layer, nullptr, extras);
      extras = extras_of<kMlpOut>(layer, residual, lane_);
      wait();

      for (int c = thread_ * kLaneColumns; c < 4 * width_; c += threads_ * kLaneColumns) {
        load_fresh_row(args_.hidden + c).store(input_ + c);
      }
      __syncthreads();
      multiply<kMlpOut>();
      store_rows<kMlpOut>(layer, residual, extras);
      if (i + 1 < args_.shape.layers) {
        norm = share_of(layers_[i + 1].attention_norm);
        extras = extras_of<kQkv>(layers_[i + 1], nullptr, lane_);
      } else {
        norm = share_of(args_.final_norm);
      }
      wait();
    }
    normalise(norm, residual);
    multiply<kClassifier>();
  }

 private:
  __device__ PassBlock(const PassArgs& args, std::byte* shared, const PassMemory& at)
      : args_(args),
        width_(args.shape.width),
        thread_(static_cast<int>(threadIdx.x)),
        threads_(static_cast<int>(blockDim.x)),
        lane_(thread_ % static_cast<int>(kWarp)),
        warp_(thread_ / static_cast<int>(kWarp)),
        warps_(threads_ / static_cast<int>(kWarp)),
        barrier_(args.barrier),
        attention_(args, shared + at.stage, shared + at.head),
        input_(reinterpret_cast<bf16*>(shared + at.stage)),
        layers_(reinterpret_cast<LayerPointers*>(shared + at.layers)),
        rows_(reinterpret_cast<Range*>(shared + at.rows)),
        items_(reinterpret_cast<Range*>(shared + at.items)),
        sums_(reinterpret_cast<float*>(shared + at.sums)),
        weights_(shared + at.slots + warp_ * args.slots * width_ * sizeof(bf16),
                 shared + at.barriers + (1 + warp_ * args.slots) * CopyRing::kBarrierBytes,
                 args.slots, width_ * static_cast<int>(sizeof(bf16))),
        gate_(shared + at.gate, shared + at.barriers, 1, width_ * static_cast<int>(sizeof(float))),
        gate_head_(static_cast<int>(blockIdx.x)) {
    share_out();
    CopyRing::init_barriers(shared + at.barriers, 1 + warps_ * args.slots);
    __syncthreads();
    for (int slot = 0; slot < weights_.slots(); ++slot) {
      weights_.start(slot, next_item());
    }
    if (has_gate_warp()) {
      gate_.start(0, next_gate());
    }
  }

  /// Copies the table of layers, and finds which rows and items are whose.
  __device__ void share_out() {
    using Word = std::uint64_t;
    static_assert(sizeof(LayerPointers) % sizeof(Word) == 0);
    const int words = args_.shape.layers * static_cast<int>(sizeof(LayerPointers) / sizeof(Word));
    for (int i = thread_; i < words; i += threads_) {
      reinterpret_cast<Word*>(layers_)[i] = reinterpret_cast<const Word*>(args_.layers)[i];
    }
    for (int i = thread_; i < warps_ * kMatrices; i += threads_) {
      const int matrix = i % kMatrices;
      const Range rows = Range{0, args_.shape.rows(matrix)}.part(static_cast<int>(blockIdx.x),
                                                                 static_cast<int>(gridDim.x));
      const int each = PassShape::items(matrix);
      items_[i] = Range{rows.first * each, rows.last * each}.part(i / kMatrices, warps_);
      if (i < kMatrices) {
        rows_[matrix] = rows;
      }
    }
  }

  /// The item of this warp that was not asked for yet; null after the last. An item begins C after
  /// the one before, also where four are a row.
  __device__ const bf16* next_item() {
    while (left_ == 0) {
      if (matrix_ == kLayerMatrices * args_.shape.layers) {
        return nullptr;
      }
      ++matrix_;
      const bool last = matrix_ == kLayerMatrices * args_.shape.layers;
      const int kind = last ? kClassifier : matrix_ % kLayerMatrices;
      const bf16* weights =
          last ? args_.classifier : layers_[matrix_ / kLayerMatrices].weights[kind];
      const Range items = items_[warp_ * kMatrices + kind];
      next_ = weights + static_cast<std::int64_t>(items.first) * width_;
      left_ = items.count();
    }
    --left_;
    const bf16* item = next_;
    next_ += width_;
    return item;
  }

  /// Likewise the gate's rows of this block.
  __device__ const float* next_gate() {
    if (gate_head_ >= args_.shape.heads) {
      gate_head_ = static_cast<int>(blockIdx.x);
      ++gate_layer_;
    }
    if (gate_head_ >= args_.shape.heads || gate_layer_ >= args_.shape.layers) {
      return nullptr;
    }
    const float* row =
        layers_[gate_layer_].gate_weight + static_cast<std::int64_t>(gate_head_) * width_;
    gate_head_ += static_cast<int>(gridDim.x);
    return row;
  }
  __device__ bool has_gate_warp() const { return args_.has_gate && warp_ == warps_ - 1; }

  /// Says that this block is done with a phase; all its threads come from a __syncthreads().
  __device__ void arrive() {
    if (thread_ == 0) {
      barrier_.arrive();
    }
  }
  __device__ void wait() {
    if (thread_ == 0) {
      barrier_.wait();
    }
    __syncthreads();
  }

  __device__ NormShare share_of(const NormPointers& norm) const {
    NormShare share{};
    const int column = thread_ * kLaneColumns;
    if (column < width_) {
      load_floats(norm.gain + column, share.gain);
      load_floats(norm.shift + column, share.shift);
    }
    return share;
  }

  template <Matrix kMatrix>
  __device__ RowExtras extras_of(const LayerPointers& layer, const bf16* residual,
                                 int index) const {
    const Range rows = rows_[kMatrix];
    if (warp_ != 0 || index >= rows.count()) {
      return {};
    }
    // A block's rows of the residual are its own: nobody else writes them.
    const int row = rows.first + index;
    return {to_float(layer.biases[kMatrix][row]),
            residual != nullptr ? load_fresh(residual + row) : 0.0F};
  }

  /// input = the normalised x [C]. Warps that have a vector of columns each read the whole row, and
  /// add up in the order of the other kernels of the norm.
  __device__ void normalise(const NormShare& share, const bf16* x) {
    if (warp_ * kStepColumns < width_) {
      Vec<bf16, kLaneColumns> vectors[kVectors];
      float sum = 0.0F;
      for_each_vector([&](int i, int column) { vectors[i] = load_fresh_row(x + column); });
      for_each_vector([&](int i, int) {
        float values[kLaneColumns];
        unpack(vectors[i], values);
#pragma unroll
        for (int k = 0; k < kLaneColumns; ++k) {
          sum += values[k];
        }
      });
      const auto width = static_cast<float>(width_);
      const float mean = warp_sum(sum) / width;
      float squares = 0.0F;
      for_each_vector([&](int i, int) {
        float values[kLaneColumns];
        unpack(vectors[i], values);
#pragma unroll
        for (int k = 0; k < kLaneColumns; ++k) {
          const float centred = values[k] - mean;
          squares += centred * centred;
        }
      });
      const float rstd = rsqrtf(warp_sum(squares) / width + kNormEpsilon);
      for_each_vector([&](int i, int column) {
        if (i == warp_) {
          float values[kLaneColumns];
          unpack(vectors[i], values);
#pragma unroll
          for (int k = 0; k < kLaneColumns; ++k) {
            values[k] = (values[k] - mean) * rstd * share.gain[k] + share.shift[k];
          }
          pack<bf16>(values).store(input_ + column);
        }
      });
    }
    __syncthreads();
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

  /// Multiplies this warp's items of a matrix by the input.
  template <Matrix kMatrix>
  __device__ void multiply() {
    constexpr int kEach = PassShape::items(kMatrix);
    const Range items = items_[warp_ * kMatrices + kMatrix];
    const int first_of_block = rows_[kMatrix].first * kEach;
    Vec<bf16, kLaneColumns> x[kVectors];
    const auto load_input = [&](const bf16* from) {
      for_each_vector(
          [&](int i, int column) { x[i] = Vec<bf16, kLaneColumns>::load(from + column); });
    };
    if constexpr (kEach == 1) {
      load_input(input_);
    }
    for (int item = items.first; item < items.last; ++item) {
      if constexpr (kEach > 1) {
        load_input(input_ + item % kEach * width_);
      }
      const auto* row = reinterpret_cast<const bf16*>(weights_.wait());
      float sum = 0.0F;
      for_each_vector([&](int i, int column) {
        float values[kLaneColumns], w[kLaneColumns];
        unpack(x[i], values);
        unpack(Vec<bf16, kLaneColumns>::load(row + column), w);
#pragma unroll
        for (int k = 0; k < kLaneColumns; ++k) {
          sum = fmaf(values[k], w[k], sum);
        }
      });
      weights_.replace(next_item());
      sum = warp_sum(sum);
      if (lane_ == 0) {
        if constexpr (kMatrix == kClassifier) {
          args_.logits[item] = sum;
        } else {
          sums_[item - first_of_block] = sum;
        }
      }
    }
  }

  /// Makes results of the block's sums, and says that the phase is done.
  template <Matrix kMatrix>
  __device__ void store_rows(const LayerPointers& layer, const bf16* residual,
                             const RowExtras& first) {
    constexpr int kEach = PassShape::items(kMatrix);
    __syncthreads();
    if (warp_ != 0) {
      return;
    }
    const Range rows = rows_[kMatrix];
    for (int i = lane_; i < rows.count(); i += static_cast<int>(kWarp)) {
      const RowExtras extras = i == lane_ ? first : extras_of<kMatrix>(layer, residual, i);
      float sum = sums_[i * kEach];
#pragma unroll
      for (int k = 1; k < kEach; ++k) {
        sum += sums_[i * kEach + k];
      }
      const float y = sum + extras.bias;
      const int row = rows.first + i;
      if constexpr (kMatrix == kQkv) {
        args_.qkv[row] = from_float<bf16>(y);
      } else if constexpr (kMatrix == kMlpIn) {
        args_.hidden[row] = from_float<bf16>(gelu_of(to_float(from_float<bf16>(y))));
      } else {
        args_.residual[row] = from_float<bf16>(y + extras.residual);
      }
    }
    __syncwarp();
    arrive();
  }

  /// Gives the gates' logits of the block's heads, and turns these heads' clocks. One warp does it,
  /// adding up in the order of other layers of few rows.
  __device__ void advance_phases(const LayerPointers& layer) {
    if (!has_gate_warp()) {
      return;
    }
    constexpr int kColumns = 4;  // of a lane at once
    constexpr int kMostPairs = 2;
    const int pairs = args_.shape.pairs();
    for (auto h = static_cast<int>(blockIdx.x); h < args_.shape.heads;
         h += static_cast<int>(gridDim.x)) {
      std::uint32_t* phases = layer.phases + h * pairs;
      std::uint32_t phase[kMostPairs];
#pragma unroll
      for (int i = 0; i < kMostPairs; ++i) {
        const int pair = i * static_cast<int>(kWarp) + lane_;
        phase[i] = pair < pairs ? phases[pair] : 0;
      }
      const float bias = layer.gate_bias != nullptr ? layer.gate_bias[h] : 0.0F;
      const bf16* x = args_.gate_reads_embedding ? args_.embedding : input_;
      const auto* row = reinterpret_cast<const float*>(gate_.wait());
      float sum = 0.0F;
      for (int column = lane_ * kColumns; column < width_; column += kWarp * kColumns) {
        float values[kColumns], w[kColumns];
        unpack(Vec<bf16, kColumns>::load(x + column), values);
        load_floats(row + column, w);
#pragma unroll
        for (int k = 0; k < kColumns; ++k) {
          sum = fmaf(values[k], w[k], sum);
        }
      }
      gate_.replace(next_gate());
      const float logit = warp_sum(sum) + bias;
      const Squares frequency = Squares::of(gate_of(logit).frequency);
#pragma unroll
      for (int i = 0; i < kMostPairs; ++i) {
        const int pair = i * static_cast<int>(kWarp) + lane_;
        if (pair < pairs) {
          Powers power(frequency, pair % kGroup, args_.exponent_start);
          power.skip(pair / kGroup);
          phases[pair] = phase[i] + power.turns();
        }
      }
      if (lane_ == 0) {
        args_.gate_logits[h] = logit;
      }
    }
  }

  const PassArgs& args_;
  int width_;
  int thread_, threads_, lane_, warp_, warps_;
  GridBarrier barrier_;
  TokenAttention attention_;
  bf16* input_;  // [4C] of a phase
  LayerPointers* layers_;
  Range* rows_;   // [kMatrices]
  Range* items_;  // [warps, kMatrices]
  float* sums_;
  CopyRing weights_;
  CopyRing gate_;
  // Where next_item() is.
  int matrix_ = -1;
  int left_ = 0;
  const bf16* next_ = nullptr;
  // Where next_gate() is.
  int gate_layer_ = 0;
  int gate_head_;
};

}  // namespace carope::cuda
