#pragma once

#include "ops/carope_scan.cuh"
#include "ops/token_pass.cuh"

namespace carope::cuda {

/// The gate of a token pass: the first warp of a block with a head turns its clock. Every lane of
/// it calls everything; in other warps, and without a gate, nothing happens.
template <class Shape>
class TokenGate {
 public:
  __device__ TokenGate(const PassArgs& args, const CopyRing& weights)
      : args_(args),
        shape_(args.shape),
        works_(head_of(args) >= 0 && threadIdx.x < kWarp),
        head_(static_cast<int>(blockIdx.x)),
        lane_(static_cast<int>(threadIdx.x % kWarp)),
        weights_(weights) {}

  /// The head whose gate this block has, or -1.
  __device__ static int head_of(const PassArgs& args) {
    const auto block = static_cast<int>(blockIdx.x);
    return args.has_gate && block < Shape(args.shape).heads ? block : -1;
  }

  /// Asks for what the head has, which nobody else writes.
  __device__ void prepare(const LayerPointers& layer) {
    if (works_) {
      const int pairs = shape_.dim / 2;
#pragma unroll
      for (int i = 0; i < kMostPairs; ++i) {
        const int pair = i * static_cast<int>(kWarp) + lane_;
        phases_[i] = pair < pairs ? layer.phases[head_ * pairs + pair] : 0;
      }
      bias_ = layer.gate_bias != nullptr ? layer.gate_bias[head_] : 0.0F;
    }
  }

  /// Publishes the logit and the new phases, adding up in the order of other layers of few rows.
  /// `normed` [C] is the layer's input.
  __device__ void run(const LayerPointers& layer, const bf16* normed, std::uint32_t tag) {
    if (!works_) {
      return;
    }
    const bf16* x = args_.gate_reads_embedding ? args_.embedding : normed;
    const int pairs = shape_.dim / 2;
    const float logit = warp_sum(product(x)) + bias_;
    const Squares frequency = Squares::of(gate_of(logit).frequency);
#pragma unroll
    for (int i = 0; i < kMostPairs; ++i) {
      const int pair = i * static_cast<int>(kWarp) + lane_;
      if (pair < pairs) {
        Powers power(frequency, pair % kGroup, args_.exponent_start);
        power.skip(pair / kGroup);
        const std::uint32_t phase = phases_[i] + power.turns();
        publish(args_.phases + head_ * pairs + pair, phase, tag);
        layer.phases[head_ * pairs + pair] = phase;
      }
    }
    if (lane_ == 0) {
      publish(args_.gate_logits + head_, logit, tag);
    }
  }

 private:
  static constexpr int kMostPairs = 2;  // of a lane

  /// This lane's share of x times the layer's row.
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
    weights_.give_back<1>();
    return sum;
  }

  const PassArgs& args_;
  Shape shape_;
  bool works_;
  int head_, lane_;
  CopyRing weights_;
  std::uint32_t phases_[kMostPairs]{};  // before the token
  float bias_ = 0.0F;
};

}  // namespace carope::cuda
