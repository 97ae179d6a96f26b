#pragma once

#include "ops/attention/attention_hopper_tiles.cuh"

// From torque, the gradient of phases, to the gradient of the gates that the phases came from,
//   dz(t) = -f σ(z) Σ_p e f^e G_p(t) with e = p + exponent_start,
// where G_p(t) sums the torque on pair p from token t on, all of whose phases the token has moved.
// Attention sees only differences of phases, so all torque on a pair sums to zero, and G_p(t) is
// minus what the tokens before t sum to. These are complete first: keys are taken from the first
// on.
namespace carope::cuda::tiled {

/// f, and the factor that makes dz of a polynomial in f: -f σ(z) f^exponent_start. Even the 31st
/// power of what fp32 gives is far better than torque from factors in bf16.
struct QuickGate {
  float frequency, scale;

  __device__ QuickGate(float logit, int exponent_start) {
    const float decayed = __expf(-fabsf(logit));
    // log(1 + e^-|z|) = 2 atanh(s)
    const float s = __fdividef(decayed, 2.0F + decayed);
    const float s2 = s * s;
    float series = 1.0F / 15;
#pragma unroll
    for (int k = 13; k > 0; k -= 2) {
      series = fmaf(series, s2, 1.0F / static_cast<float>(k));
    }
    const float softplus = fmaf(2.0F * s, series, fmaxf(logit, 0.0F));
    frequency = 1.0F / (softplus + 1.0F);
    scale = -frequency * __fdividef(logit < 0.0F ? decayed : 1.0F, 1.0F + decayed);
    for (int i = 0; i < exponent_start; ++i) {
      scale *= frequency;
    }
  }
};

/// What the copying group does of that, block after block of keys. A warp has 16 tokens of a tile,
/// and each of its lanes one pair.
class GateGradients {
 public:
  /// Waits for the torque of the next block of keys, and writes its tokens' gradients.
  __device__ void add_block(const Problem<bf16>& p, const Input& input, SharedMemory& shared) {
#pragma unroll 1
    for (int group = 0; group < kGroups; ++group) {
      add_tile(p, input, shared, group);
    }
    ++blocks_;
    first_tile_ += kGroups;
    if (first_tile_ * kTile == p.queries) {
      first_tile_ = 0;
      head_ += static_cast<int>(gridDim.x);
      before_ = 0.0F;
    }
  }

 private:
  static constexpr int kTokens = kTile / (kGroupThreads / kWarp);  // of a warp
  static_assert(kPairs == kWarp && 2 * kTokens == kWarp);

  __device__ void add_tile(const Problem<bf16>& p, const Input& input, SharedMemory& shared,
                           int group) {
    const int thread = read_thread();
    const int warp = thread / static_cast<int>(kWarp);
    const int lane = thread % static_cast<int>(kWarp);
    // Both halves of the warp have its tokens' gates.
    const int token = (first_tile_ + group) * kTile + warp * kTokens + lane % kTokens;
    const std::int64_t at =
        (static_cast<std::int64_t>(head_ / p.heads) * p.queries + token) * p.heads +
        head_ % p.heads;
    const float logit = input.logits[at];

    float values[kTokens];  // the sums before each token, then the polynomials' parts
    barrier_at(shared.torque_there[group]).wait(blocks_);
    float sum = 0.0F;
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
      values[i] = sum;
      sum += *torque_at(shared.score_gradients[group], warp * kTokens + i, lane);
    }
    barrier_at(shared.torque_free[group]).arrive();
    TorqueSums& sums = shared.torque_sums[group];
    sums.of[warp][lane] = sum;
    wait_at<kGroupThreads>(within(kGroups));
    float before = before_;
#pragma unroll
    for (int i = 0; i < TorqueSums::kWarps; ++i) {
      before += i < warp ? sums.of[i][lane] : 0.0F;
      before_ += sums.of[i][lane];
    }

    const QuickGate gate(logit, input.exponent_start);
    constexpr float kTiny = -1000.0F;  // no power but the zeroth is left of it
    const float log2 = fmaxf(__log2f(gate.frequency), kTiny);
    const auto pair = static_cast<float>(lane);
    const float exponent = pair + static_cast<float>(input.exponent_start);
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
      const float power = fast_exp2(pair * __shfl_sync(kAllLanes, log2, i));
      values[i] = exponent * power * (before + values[i]);
    }
    const float total = sum_over_pairs(values, lane);
    if (lane < kTokens) {
      input.dlogits[at] = -gate.scale * total;
    }
  }

  /// Sums values[i] over lanes, for token i = lane % kTokens. Lanes share the work by halves.
  static __device__ float sum_over_pairs(float (&values)[kTokens], int lane) {
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const int half = kTokens / 2 >> step;
      const bool upper = (lane & half) != 0;
#pragma unroll
      for (int i = 0; i < kTokens / 2; ++i) {
        if (i < half) {
          const float other = upper ? values[i] : values[i + half];
          const float own = upper ? values[i + half] : values[i];
          values[i] = own + __shfl_xor_sync(kAllLanes, other, half);
        }
      }
    }
    return values[0] + __shfl_xor_sync(kAllLanes, values[0], kTokens);
  }

  int head_ = static_cast<int>(blockIdx.x);
  int first_tile_ = 0;  // of the block of keys
  int blocks_ = 0;
  float before_ = 0.0F;  // what the torque on the lane's pair sums to, of the tiles so far
};

}  // namespace carope::cuda::tiled
