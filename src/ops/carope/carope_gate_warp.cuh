#pragma once

#include "ops/carope/carope_scan.cuh"

// The gate's gradient for bf16 and heads of 64, the sizes that are trained most: a warp goes alone
// through one head of one row, from the end, and waits for nobody. A tile of its tokens is in
// registers while the next one is on its way: eight runs of eight tokens, and of each run a lane
// has a group of eight pairs. Lanes pass on what follows a run, and join the parts of polynomials,
// by shuffles. Sums within a tile are fp32, sums of tiles fp64.
namespace carope::cuda {

struct GateArgs {
  const float* logits;                 // [B, T, H]
  const std::int32_t* document_start;  // [B, T] or null
  float* dlogits;                      // [B, T, H]
  int heads;
  int length;
  int exponent_start;
};

inline constexpr int kLaneGroups = 4;  // lanes that share a run
inline constexpr int kWarpPairs = kLaneGroups * kGroup;
inline constexpr int kWarpRuns = static_cast<int>(kWarp) / kLaneGroups;
inline constexpr int kWarpTokens = kWarpRuns * kRun;   // of a warp's tile
inline constexpr int kOwnTokens = kRun / kLaneGroups;  // of a run, whose gates a lane computes

/// f, and the factor that makes dz of a polynomial in f: -f σ(z) f^exponent_start. Even the 31st
/// power of what fp32 gives is far better than torque in bf16.
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

/// The part of a tile that a lane has.
struct LanePlace {
  int group, run;

  __device__ LanePlace()
      : group(static_cast<int>(threadIdx.x) % kLaneGroups),
        run(static_cast<int>(threadIdx.x % kWarp) / kLaneGroups) {}

  /// The first of its own tokens: those that joining parts by halves leaves it with.
  __device__ int own() const {
    int first = 0;
#pragma unroll
    for (int bit = 1; bit < kLaneGroups; bit *= 2) {
      first += (group & bit) != 0 ? kRun / 2 / bit : 0;
    }
    return first;
  }
  /// The lane whose own a token of the run is.
  __device__ int owner(int token) const {
    int owner = run * kLaneGroups;
#pragma unroll
    for (int bit = 1; bit < kLaneGroups; bit *= 2) {
      owner += (token & (kRun / 2 / bit)) != 0 ? bit : 0;
    }
    return owner;
  }
};

/// One head of one row, as its warp sees it.
struct GateRow {
  const GateArgs& args;
  const bf16* torque;
  std::int64_t begin;  // the row's first token
  int head;

  __device__ std::int64_t gate_at(int token) const { return (begin + token) * args.heads + head; }
  __device__ bool starts_document(int token) const {
    return args.document_start[begin + token] == token;
  }
};

/// A warp's tile, in registers.
struct LaneTile {
  RawRow<bf16, kGroup> torque[kRun];
  float logit[kOwnTokens];
  unsigned begins;  // bit i: token i of the run begins a document

  /// `first` is the run's first token; what is past the row's end has neither torque nor a gate.
  __device__ void load(const GateRow& row, const LanePlace& place, int first) {
    const int tokens = row.args.length - first;
    const int own = place.own();
    const bf16* from = row.torque + row.gate_at(first) * kWarpPairs + place.group * kGroup;
    const std::int64_t stride = static_cast<std::int64_t>(row.args.heads) * kWarpPairs;
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
      torque[i] = {};
      if (i < tokens) {
        torque[i] = RawRow<bf16, kGroup>::load(from + i * stride);
      }
    }
#pragma unroll
    for (int i = 0; i < kOwnTokens; ++i) {
      logit[i] = own + i < tokens ? row.args.logits[row.gate_at(first + own + i)] : 0.0F;
    }
    begins = 0;
    if (row.args.document_start != nullptr) {
#pragma unroll
      for (int i = 0; i < kRun; ++i) {
        if (i < tokens && row.starts_document(first + i)) {
          begins |= 1U << i;
        }
      }
    }
  }

  /// What each run and those after it in the tile pass on to the run before, and whether what
  /// follows the tile reaches there, too.
  __device__ bool scan(const LanePlace& place, float (&sum)[kGroup]) const {
#pragma unroll
    for (int k = 0; k < kGroup; ++k) {
      sum[k] = 0.0F;
    }
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
      if ((begins & ((2U << i) - 1)) == 0) {
        float values[kGroup];
        unpack(torque[i], values);
#pragma unroll
        for (int k = 0; k < kGroup; ++k) {
          sum[k] += values[k];
        }
      }
    }
    bool through = begins == 0;
#pragma unroll
    for (int step = 1; step < kWarpRuns; step *= 2) {
      const int later_through = __shfl_down_sync(kAllLanes, through ? 1 : 0, step * kLaneGroups);
      const bool adds = through && place.run + step < kWarpRuns;
#pragma unroll
      for (int k = 0; k < kGroup; ++k) {
        const float later = __shfl_down_sync(kAllLanes, sum[k], step * kLaneGroups);
        sum[k] += adds ? later : 0.0F;
      }
      through = adds ? later_through != 0 : through;
    }
    return through;
  }

  /// Stores dz of every token; `sum` is what follows each run.
  __device__ void finish(const GateRow& row, const LanePlace& place, int first,
                         float (&sum)[kGroup]) const {
    float frequency[kOwnTokens];
    float scale[kOwnTokens];
#pragma unroll
    for (int i = 0; i < kOwnTokens; ++i) {
      const QuickGate gate(logit[i], row.args.exponent_start);
      frequency[i] = gate.frequency;
      scale[i] = gate.scale;
    }
    const auto exponent = static_cast<float>(row.args.exponent_start + place.group * kGroup);
#pragma unroll
    for (int k = 0; k < kGroup; ++k) {
      sum[k] *= exponent + static_cast<float>(k);
    }
    float parts[kRun];
    float powers[kRun];  // f^8
#pragma unroll
    for (int i = kRun - 1; i >= 0; --i) {
      const float f = __shfl_sync(kAllLanes, frequency[i % kOwnTokens], place.owner(i));
      powers[i] = f * f;
      powers[i] *= powers[i];
      powers[i] *= powers[i];
      float values[kGroup];
      unpack(torque[i], values);
      parts[i] = 0.0F;
#pragma unroll
      for (int k = kGroup - 1; k >= 0; --k) {
        sum[k] = fmaf(exponent + static_cast<float>(k), values[k], sum[k]);
        parts[i] = fmaf(parts[i], f, sum[k]);
      }
      if ((begins >> i & 1) != 0) {
#pragma unroll
        for (int k = 0; k < kGroup; ++k) {
          sum[k] = 0.0F;
        }
      }
    }
    join_parts(place, parts, powers);
#pragma unroll
    for (int i = 0; i < kOwnTokens; ++i) {
      const int token = first + place.own() + i;
      if (token < row.args.length) {
        row.args.dlogits[row.gate_at(token)] = scale[i] * parts[i];
      }
    }
  }

  /// Leaves each lane with whole polynomials of its own tokens. Two lanes join their parts, each
  /// for half of the tokens that both still have.
  __device__ static void join_parts(const LanePlace& place, float (&parts)[kRun],
                                    float (&powers)[kRun]) {
#pragma unroll
    for (int bit = 1; bit < kLaneGroups; bit *= 2) {
      const bool upper = (place.group & bit) != 0;
      const int half = kRun / 2 / bit;
#pragma unroll
      for (int i = 0; i < half; ++i) {
        const float given = upper ? parts[i] : parts[i + half];
        const float kept = upper ? parts[i + half] : parts[i];
        const float power = upper ? powers[i + half] : powers[i];
        const float got = __shfl_xor_sync(kAllLanes, given, bit);
        parts[i] = upper ? fmaf(kept, power, got) : fmaf(got, power, kept);
        powers[i] = power * power;
      }
    }
  }
};

/// What follows a warp's tile, for a lane's group of pairs.
struct Following {
  double sum[kGroup] = {};

  /// Goes on to the tile before. Turns what scan() gave into what follows each run.
  __device__ void pass(const LanePlace& place, bool through, float (&runs)[kGroup]) {
    const bool last = place.run == kWarpRuns - 1;
    const bool all_through = __shfl_sync(kAllLanes, through ? 1 : 0, 0) != 0;
    const bool reaches = __shfl_down_sync(kAllLanes, through ? 1 : 0, kLaneGroups) != 0 || last;
#pragma unroll
    for (int k = 0; k < kGroup; ++k) {
      const float tile = __shfl_sync(kAllLanes, runs[k], place.group);
      const float next = __shfl_down_sync(kAllLanes, runs[k], kLaneGroups);
      runs[k] = (last ? 0.0F : next) + (reaches ? static_cast<float>(sum[k]) : 0.0F);
      sum[k] = tile + (all_through ? sum[k] : 0.0);
    }
  }
};

}  // namespace carope::cuda
