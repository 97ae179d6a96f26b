#pragma once

#include "ops/carope/carope_scan.cuh"
#include "ops/token_pass/token_pass.cuh"

namespace carope::cuda {

/// How far a block's head turns: by its gate, or else by the position. The block's first warp
/// knows, and every lane of it calls everything; in other warps, and in blocks without a head,
/// nothing happens. All blocks of a head compute its gate for themselves, sooner than one could
/// tell others.
template <class Shape>
class TokenGate {
 public:
  __device__ TokenGate(const PassArgs& args, const TokenPart& part, const CopyRing& weights)
      : args_(args),
        shape_(args.shape),
        works_(args.has_gate && part.works() && threadIdx.x < kWarp),
        stores_(works_ && part.index == 0),
        head_(part.head),
        weights_(weights) {
    if (args.increments != nullptr) {
      for_each_pair([&](int i, int pair) {
        turns_.turns[i] = (static_cast<std::uint32_t>(part.position) + 1) * args.increments[pair];
      });
    }
  }

  /// Asks for what the head has before the token.
  __device__ void prepare(const LayerPointers& layer) {
    if (works_) {
      for_each_pair([&](int i, int pair) { turns_.turns[i] = layer.phases[first() + pair]; });
      turns_.logit = layer.gate_bias != nullptr ? layer.gate_bias[head_] : 0.0F;
    }
  }

  /// Turns the clock of a layer. Adds up in the order of other layers of few rows. `normed` [C] is
  /// the layer's input.
  __device__ void run(int layer, const bf16* normed) {
    if (!works_) {
      return;
    }
    weights_.go_to(layer);
    turns_.logit += warp_sum(product(args_.gate_reads_embedding ? args_.embedding : normed));
    const Squares frequency = Squares::of(gate_of(turns_.logit).frequency);
    for_each_pair([&](int i, int pair) {
      Powers power(frequency, pair % kGroup, args_.exponent_start);
      power.skip(pair / kGroup);
      turns_.turns[i] += power.turns();
    });
  }

  __device__ const PairTurns& turns() const { return turns_; }

  /// Keeps the phases for the next token, once all blocks of the head have read those before.
  __device__ void store(const LayerPointers& layer) const {
    if (stores_) {
      for_each_pair([&](int i, int pair) { layer.phases[first() + pair] = turns_.turns[i]; });
    }
  }

 private:
  __device__ int first() const { return head_ * (shape_.dim / 2); }  // pair of the head

  template <class Visit>
  __device__ void for_each_pair(const Visit& visit) const {
#pragma unroll
    for (int i = 0; i < kLanePairs; ++i) {
      const int pair = static_cast<int>(i * kWarp + threadIdx.x % kWarp);
      if (pair < shape_.dim / 2) {
        visit(i, pair);
      }
    }
  }

  /// This lane's share of x times the layer's row.
  __device__ float product(const bf16* x) {
    constexpr int kColumns = 4;  // of a lane at once
    const auto* row = reinterpret_cast<const float*>(weights_.wait());
    float sum = 0.0F;
#pragma unroll 2
    for (int column = static_cast<int>(threadIdx.x % kWarp) * kColumns; column < shape_.width;
         column += kWarp * kColumns) {
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
  bool works_, stores_;
  int head_;
  CopyRing weights_;
  PairTurns turns_{};  // its logit is only the bias until run()
};

}  // namespace carope::cuda
