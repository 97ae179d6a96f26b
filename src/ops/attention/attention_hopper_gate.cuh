#pragma once

#include "ops/attention/attention_hopper_tiles.cuh"
#include "ops/gate.h"

// From torque, the gradient of phases, to the gradient of the gates that the phases came from,
//   dz(t) = -f σ(z) Σ_p e f^e G_p(t) with e = p + exponent_start,
// where G_p(t) sums the torque on pair p from token t on, all of whose phases the token has moved.
// Attention sees only differences of phases, so all torque on a pair sums to zero, and G_p(t) is
// minus what the tokens before t sum to. These are complete first: keys are taken from the first
// on.
namespace carope::cuda::tiled {

/// The special function unit's arithmetic. Even the 31st power of what fp32 gives is far better
/// than torque from factors in bf16.
struct QuickMath {
  static __device__ float abs(float x) { return fabsf(x); }
  static __device__ float max(float a, float b) { return fmaxf(a, b); }
  static __device__ float divide(float a, float b) { return __fdividef(a, b); }
  static __device__ float exp_of_negative(float x) { return __expf(x); }
  /// As 2 atanh(s).
  static __device__ float log1p(float y) {
    const float s = __fdividef(y, 2.0F + y);
    const float s2 = s * s;
    float series = 1.0F / 15;
#pragma unroll
    for (int k = 13; k > 0; k -= 2) {
      series = fmaf(series, s2, 1.0F / static_cast<float>(k));
    }
    return 2.0F * s * series;
  }
};

/// log2(f), and the factor that makes dz of -Σ e f^e G: f σ(z).
struct QuickGate {
  float log2, slope;

  __device__ explicit QuickGate(float logit) {
    const float decayed = gate::decayed<QuickMath>(logit);
    const float frequency = gate::frequency<QuickMath>(logit, decayed);
    slope = frequency * gate::sigmoid<QuickMath>(logit, decayed);
    constexpr float kTiny = -1000.0F;  // no power but the zeroth is left of it
    log2 = fmaxf(__log2f(frequency), kTiny);
  }
};

/// What the copying group does of that, block after block of keys. A warp has 16 tokens of a tile,
/// and each of its lanes one pair.
class GateGradients {
 public:
  __device__ explicit GateGradients(int tiles) : tiles_(tiles), last_(tiles - 1) {}

  /// With which tile the next block of keys is to be added: the one that takes the place of the
  /// block's last. Its torque is there by then, all that the other groups can go on with has been
  /// brought, and the block whose keys come where the torque is begins with that tile or later. A
  /// head's last block can wait until the first round of the next head is over, in which tiles
  /// take longest.
  __device__ int due() const {
    const bool last_of_head = first_tile_ + kGroups == tiles_;
    return last_ + (last_of_head ? max(kStages, tiles_) : kStages);
  }
  __device__ bool done(const Problem<bf16>& p) const { return head_ >= p.batch * p.heads; }

  /// Waits for the torque of the next block of keys, and writes its tokens' gradients.
  __device__ void add_block(const Problem<bf16>& p, const RotationArgs& rotation,
                            const RotationOutputs& outputs, SharedMemory& shared) {
    static_assert(kGroups == 2);
    unsigned at = first_gate(p);
    const unsigned step = kTile * p.heads;  // to the gate in the next tile
    QuickGate gate(rotation.logits[at]);
    const QuickGate next(rotation.logits[at + step]);
#pragma unroll 1
    for (int group = 0; group < kGroups; ++group) {
      const float total = add_tile(shared, group, gate.log2, rotation.exponent_start);
      if (read_thread() % kWarp < kTokens) {
        outputs.dlogits[at] = gate.slope * total;
      }
      gate = next;
      at += step;
    }
    publish_to_products();  // keys are copied there next
    wait_at<kGroupThreads>(within(kGroups));
    ++blocks_;
    first_tile_ += kGroups;
    if (first_tile_ == tiles_) {
      first_tile_ = 0;
      head_ += static_cast<int>(gridDim.x);
      before_ = 0.0F;
    }
    last_ += tiles_ - first_tile_;
  }

 private:
  static constexpr unsigned kTokens = GateStage::kTokens;
  static_assert(kPairs == kWarp && 2 * kTokens == kWarp);

  /// Where the gate of the lane's token is, in the first tile of the block. Both halves of a warp
  /// have its tokens' gates.
  __device__ unsigned first_gate(const Problem<bf16>& p) const {
    const auto thread = static_cast<unsigned>(read_thread());
    const unsigned token = first_tile_ * kTile + thread / kWarp * kTokens + thread % kTokens;
    return (head_ / p.heads * p.queries + token) * p.heads + head_ % p.heads;
  }

  /// Σ_p e f^e (-G_p) of the lane's token.
  __device__ float add_tile(SharedMemory& shared, int group, float own_log2, int exponent_start) {
    const auto thread = static_cast<unsigned>(read_thread());
    const unsigned warp = thread / kWarp;
    const unsigned lane = thread % kWarp;
    GateStage& stage = shared.gates;
    __syncwarp();  // what was there before has been read
    stage.log2[warp][lane % kTokens] = own_log2;
    const auto exponent = static_cast<float>(static_cast<int>(lane) + exponent_start);
    const std::byte* const torque = shared.keys[blocks_ % 2][group] + warp * kTokens * kTorqueBytes;
    float values[kTokens];  // e times the sums before each token, then e f^e times them
    barrier_at(shared.torque_there[blocks_ % 2][group]).wait(blocks_ / 2);
    float sum = 0.0F;
#pragma unroll
    for (unsigned i = 0; i < kTokens; ++i) {
      values[i] = sum;
      sum = fmaf(exponent, *reinterpret_cast<const float*>(torque + torque_at(i, lane)), sum);
    }
    stage.sums[group][warp][lane] = sum;
    wait_at<kGroupThreads>(within(kGroups));
    float before = before_;
#pragma unroll
    for (unsigned i = 0; i < GateStage::kWarps; ++i) {
      const float other = stage.sums[group][i][lane];
      before += i < warp ? other : 0.0F;
      before_ += other;
    }
#pragma unroll
    for (unsigned i = 0; i < kTokens; i += 4) {
      const auto log2 = Vec<float, 4>::load(&stage.log2[warp][i]);
#pragma unroll
      for (unsigned k = 0; k < 4; ++k) {
        values[i + k] = fast_exp2(exponent * log2.at[k]) * (before + values[i + k]);
      }
    }
    return sum_over_pairs(values, lane);
  }

  /// Sums values[i] over lanes, for token i = lane % kTokens. Lanes share the work by halves.
  static __device__ float sum_over_pairs(float (&values)[kTokens], unsigned lane) {
#pragma unroll
    for (unsigned step = 0; step < 4; ++step) {
      const unsigned half = kTokens / 2 >> step;
      const bool upper = (lane & half) != 0;
#pragma unroll
      for (unsigned i = 0; i < kTokens / 2; ++i) {
        if (i < half) {
          const float other = upper ? values[i] : values[i + half];
          const float own = upper ? values[i + half] : values[i];
          values[i] = own + __shfl_xor_sync(kAllLanes, other, static_cast<int>(half));
        }
      }
    }
    return values[0] + __shfl_xor_sync(kAllLanes, values[0], static_cast<int>(kTokens));
  }

  int tiles_;
  int last_;  // of the block's tiles, among all that are brought
  int head_ = static_cast<int>(blockIdx.x);
  int first_tile_ = 0;  // of the block of keys
  int blocks_ = 0;
  float before_ = 0.0F;  // e times what the torque on the lane's pair sums to, of the tiles so far
};

}  // namespace carope::cuda::tiled
