#pragma once

#include "ops/carope_scan.cuh"
#include "ops/token_pass.cuh"

namespace carope::cuda {

/// The gates of a token pass: a block's first warp has the block's heads, and turns their clocks.
/// Every lane of it calls everything; in other warps, and without a gate, nothing happens.
template <class Shape>
class TokenGate {
 public:
  __device__ TokenGate(const PassArgs& args, const LayerPointers* layers, std::byte* row,
                       std::byte* barrier)
      : args_(args),
        shape_(args.shape),
        layers_(layers),
        works_(args.has_gate && threadIdx.x < kWarp && static_cast<int>(blockIdx.x) < shape_.heads),
        lane_(static_cast<int>(threadIdx.x % kWarp)),
        weights_(row, barrier, 1, shape_.width * static_cast<int>(sizeof(float))),
        next_head_(static_cast<int>(blockIdx.x)) {}

  /// Asks for the first row of weights; the barrier is initialised then.
  __device__ void begin() {
    if (works_) {
      weights_.start(0, next_row());
    }
  }

  /// Asks for what the first head has, which nobody else writes.
  __device__ void prepare(const LayerPointers& layer) {
    if (works_) {
      first_ = load(layer, static_cast<int>(blockIdx.x));
    }
  }

  /// Publishes the logits and the new phases of the block's heads, adding up in the order of other
  /// layers of few rows. `normed` [C] is the layer's input.
  __device__ void run(const LayerPointers& layer, const bf16* normed, std::uint32_t tag) {
    if (!works_) {
      return;
    }
    const bf16* x = args_.gate_reads_embedding ? args_.embedding : normed;
    const int pairs = shape_.dim / 2;
    for (auto h = static_cast<int>(blockIdx.x); h < shape_.heads;
         h += static_cast<int>(gridDim.x)) {
      const Head head = h == static_cast<int>(blockIdx.x) ? first_ : load(layer, h);
      const float logit = warp_sum(product(x)) + head.bias;
      const Squares frequency = Squares::of(gate_of(logit).frequency);
#pragma unroll
      for (int i = 0; i < kMostPairs; ++i) {
        const int pair = i * static_cast<int>(kWarp) + lane_;
        if (pair < pairs) {
          Powers power(frequency, pair % kGroup, args_.exponent_start);
          power.skip(pair / kGroup);
          const std::uint32_t phase = head.phases[i] + power.turns();
          publish(args_.phases + h * pairs + pair, phase, tag);
          layer.phases[h * pairs + pair] = phase;
        }
      }
      if (lane_ == 0) {
        publish(args_.gate_logits + h, logit, tag);
      }
    }
  }

 private:
  static constexpr int kMostPairs = 2;  // of a lane

  struct Head {
    std::uint32_t phases[kMostPairs];  // before the token
    float bias;
  };

  __device__ Head load(const LayerPointers& layer, int h) const {
    const int pairs = shape_.dim / 2;
    Head head{};
#pragma unroll
    for (int i = 0; i < kMostPairs; ++i) {
      const int pair = i * static_cast<int>(kWarp) + lane_;
      if (pair < pairs) {
        head.phases[i] = layer.phases[h * pairs + pair];
      }
    }
    head.bias = layer.gate_bias != nullptr ? layer.gate_bias[h] : 0.0F;
    return head;
  }

  /// This lane's share of x times the next row, whose place it gives to the one after.
  __device__ float product(const bf16* x) {
    constexpr int kColumns = 4;  // of a lane at once
    const auto* row = reinterpret_cast<const float*>(weights_.wait());
    float sum = 0.0F;
#pragma unroll 4
    for (int column = lane_ * kColumns; column < shape_.width; column += kWarp * kColumns) {
      float values[kColumns], w[kColumns];
      unpack(Vec<bf16, kColumns>::load(x + column), values);
      load_floats(row + column, w);
#pragma unroll
      for (int k = 0; k < kColumns; ++k) {
        sum = fmaf(values[k], w[k], sum);
      }
    }
    weights_.replace(next_row());
    return sum;
  }

  /// The row of this block's that was not asked for yet; null after the last.
  __device__ const float* next_row() {
    if (next_head_ >= shape_.heads) {
      next_head_ = static_cast<int>(blockIdx.x);
      ++next_layer_;
    }
    if (next_layer_ >= shape_.layers) {
      return nullptr;
    }
    const float* row =
        layers_[next_layer_].gate_weight + static_cast<std::int64_t>(next_head_) * shape_.width;
    next_head_ += static_cast<int>(gridDim.x);
    return row;
  }

  const PassArgs& args_;
  Shape shape_;
  const LayerPointers* layers_;
  bool works_;
  int lane_;
  CopyRing weights_;
  Head first_{};
  int next_layer_ = 0;
  int next_head_;
};

}  // namespace carope::cuda
