#pragma once

#include "ops/partial_softmax.cuh"
#include "ops/token_pass.cuh"

namespace carope::cuda {

/// A token's attention as the blocks of a token pass share it: a block has one head and a part of
/// the keys, or several such in turns. D / 8 lanes share a key; every such group of lanes has a
/// softmax of its own until the end.
class TokenAttention {
 public:
  __device__ TokenAttention(const PassArgs& args, std::byte* stage, std::byte* head)
      : args_(args),
        dim_(args.shape.dim),
        warps_(static_cast<int>(blockDim.x / kWarp)),
        query_(reinterpret_cast<float*>(head)),
        key_(reinterpret_cast<bf16*>(query_ + dim_)),
        value_(key_ + dim_),
        warp_max_(reinterpret_cast<float*>(stage)),
        warp_sum_(warp_max_ + warps_),
        warp_out_(warp_sum_ + warps_),
        lanes_(dim_ / kLaneColumns),
        groups_(static_cast<int>(blockDim.x) / lanes_),
        group_(static_cast<int>(threadIdx.x) / lanes_),
        column_(static_cast<int>(threadIdx.x) % lanes_ * kLaneColumns),
        position_(*args.position) {
    const int rounds = position_ / groups_ + 1;  // of all groups
    part_keys_ = (rounds + args.most_parts - 1) / args.most_parts * groups_;
    parts_ = position_ / part_keys_ + 1;
  }

  /// Asks for the first keys and values, which no block writes in this launch, but for the token's.
  __device__ void prepare(const LayerPointers& layer) {
    const auto unit = static_cast<int>(blockIdx.x);
    if (unit < args_.shape.heads * parts_) {
      const Part part = part_of(unit);
      first_ = load(layer, part, part.first);
    }
  }

  /// Rotates q and k, puts the token's k and v into the cache and leaves the parts' results.
  __device__ void run(const LayerPointers& layer) {
    for (auto unit = static_cast<int>(blockIdx.x); unit < args_.shape.heads * parts_;
         unit += static_cast<int>(gridDim.x)) {
      const Part part = part_of(unit);
      if (unit != static_cast<int>(blockIdx.x)) {
        __syncthreads();  // the part before is stored
        first_ = load(layer, part, part.first);
      }
      const float slope = args_.slopes != nullptr ? args_.slopes[part.head] : 0.0F;
      rotate(layer, part);
      __syncthreads();
      PartialSoftmax<kLaneColumns> softmax = attend(layer, part, slope);
      join_groups(softmax);
      __syncthreads();
      store(part);
    }
  }

  /// The result of all parts, as bf16 [C], in this block's shared memory.
  __device__ void join_parts(bf16* attended) const {
    constexpr int kAtOnce = 12;
    const int width = args_.shape.width;
    const int heads = args_.shape.heads;
    for (auto c = static_cast<int>(threadIdx.x) * 2; c < width;
         c += static_cast<int>(blockDim.x) * 2) {
      const int h = c / dim_;
      PartialSoftmax<2> all;
      for (int begin = 0; begin < parts_; begin += kAtOnce) {
        float max[kAtOnce], sum[kAtOnce];
        Vec<float, 2> out[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const int part = begin + i;
          max[i] = tiled::kNegativeInfinity;
          sum[i] = 0.0F;
          out[i] = {};
          if (part < parts_) {
            max[i] = load_fresh(args_.part_max + part * heads + h);
            sum[i] = load_fresh(args_.part_sum + part * heads + h);
            out[i] = load_fresh_pair(args_.part_out + part * width + c);
          }
        }
        float largest = max[0];
#pragma unroll
        for (int i = 1; i < kAtOnce; ++i) {
          largest = fmaxf(largest, max[i]);
        }
        const float shift = all.raise(largest);
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const float weight = expf(max[i] - shift);
          all.sum += weight * sum[i];
          all.out[0] += weight * out[i].at[0];
          all.out[1] += weight * out[i].at[1];
        }
      }
      const float result[2] = {all.out[0] / all.sum, all.out[1] / all.sum};
      pack<bf16>(result).store(attended + c);
    }
  }

 private:
  static constexpr int kKeysAtOnce = 2;  // of a group, on their way

  struct Part {
    int head, index;
    int first, last;  // keys
  };
  struct Loads {
    Vec<bf16, kLaneColumns> keys[kKeysAtOnce], values[kKeysAtOnce];
  };

  __device__ Part part_of(int unit) const {
    const int index = unit % parts_;
    const int first = index * part_keys_;
    return {unit / parts_, index, first, min(first + part_keys_, position_ + 1)};
  }
  /// Key number j of a group's from `start` on; past the end the last one again.
  __device__ int key_at(const Part& part, int start, int j) const {
    return min(start + j * groups_ + group_, part.last - 1);
  }

  __device__ Loads load(const LayerPointers& layer, const Part& part, int start) const {
    Loads loads{};
#pragma unroll
    for (int j = 0; j < kKeysAtOnce; ++j) {
      if (start + j * groups_ < part.last) {
        const std::int64_t at =
            static_cast<std::int64_t>(key_at(part, start, j)) * args_.shape.width +
            part.head * dim_ + column_;
        loads.keys[j] = load_fresh_row(layer.keys + at);
        loads.values[j] = load_fresh_row(layer.values + at);
      }
    }
    return loads;
  }

  __device__ void rotate(const LayerPointers& layer, const Part& part) const {
    const int width = args_.shape.width;
    const int pairs = args_.shape.pairs();
    const bf16* q = args_.qkv + part.head * dim_;
    const bf16* k = q + width;
    const bf16* v = k + width;
    const bool appends = part.last == position_ + 1;
    const std::int64_t place = static_cast<std::int64_t>(position_) * width + part.head * dim_;
    for (auto p = static_cast<int>(threadIdx.x); p < pairs; p += static_cast<int>(blockDim.x)) {
      const int at[2] = {p * args_.head.step, p * args_.head.step + args_.head.partner};
      float query[2] = {load_fresh(q + at[0]), load_fresh(q + at[1])};
      float key[2] = {load_fresh(k + at[0]), load_fresh(k + at[1])};
      const float value[2] = {load_fresh(v + at[0]), load_fresh(v + at[1])};
      if (args_.has_gate) {
        turn(load_fresh(layer.phases + part.head * pairs + p), query, key);
        // A phase in turns cannot be NaN, so a NaN logit is put into the query, as in carope().
        const float logit = load_fresh(args_.gate_logits + part.head);
        query[0] = p == 0 && isnan(logit) ? logit : query[0];
      } else if (args_.increments != nullptr) {
        turn((static_cast<std::uint32_t>(position_) + 1) * args_.increments[p], query, key);
      }
#pragma unroll
      for (int side = 0; side < 2; ++side) {
        query_[at[side]] = to_float(from_float<bf16>(query[side]));
        key_[at[side]] = from_float<bf16>(key[side]);
        value_[at[side]] = from_float<bf16>(value[side]);
        if (appends) {
          layer.keys[place + at[side]] = from_float<bf16>(key[side]);
          layer.values[place + at[side]] = from_float<bf16>(value[side]);
        }
      }
    }
  }

  __device__ static void turn(std::uint32_t turns, float (&query)[2], float (&key)[2]) {
    float sine, cosine;
    sincos_turns<bf16>(turns, sine, cosine);
    const auto rotate_pair = [&](float(&pair)[2]) {
      const float x = pair[0];
      pair[0] = x * cosine - pair[1] * sine;
      pair[1] = x * sine + pair[1] * cosine;
    };
    rotate_pair(query);
    rotate_pair(key);
  }

  __device__ PartialSoftmax<kLaneColumns> attend(const LayerPointers& layer, const Part& part,
                                                 float slope) const {
    float q[kLaneColumns];
#pragma unroll
    for (int i = 0; i < kLaneColumns; ++i) {
      q[i] = query_[column_ + i] * args_.scale;
    }
    PartialSoftmax<kLaneColumns> softmax;
    Loads loads = first_;
    for (int start = part.first; start < part.last; start += kKeysAtOnce * groups_) {
      const Loads next = load(layer, part, start + kKeysAtOnce * groups_);
      float scores[kKeysAtOnce];
      float largest = tiled::kNegativeInfinity;
#pragma unroll
      for (int j = 0; j < kKeysAtOnce; ++j) {
        if (key_at(part, start, j) == position_) {  // not in the cache when that was read
          loads.keys[j] = Vec<bf16, kLaneColumns>::load(key_ + column_);
          loads.values[j] = Vec<bf16, kLaneColumns>::load(value_ + column_);
        }
        float k[kLaneColumns];
        unpack(loads.keys[j], k);
        float score = 0.0F;
#pragma unroll
        for (int i = 0; i < kLaneColumns; ++i) {
          score += q[i] * k[i];
        }
        for (int step = lanes_ / 2; step > 0; step /= 2) {
          score += __shfl_xor_sync(kAllLanes, score, step);
        }
        const int key = start + j * groups_ + group_;
        scores[j] = key < part.last ? score - slope * static_cast<float>(position_ - key)
                                    : tiled::kNegativeInfinity;
        largest = fmaxf(largest, scores[j]);
      }
      const float shift = softmax.raise(largest);
#pragma unroll
      for (int j = 0; j < kKeysAtOnce; ++j) {
        const float e = expf(scores[j] - shift);
        float v[kLaneColumns];
        unpack(loads.values[j], v);
        softmax.sum += e;
#pragma unroll
        for (int i = 0; i < kLaneColumns; ++i) {
          softmax.out[i] += e * v[i];
        }
      }
      loads = next;
    }
    return softmax;
  }

  /// Joins the groups of each warp, and leaves what is joined in shared memory.
  __device__ void join_groups(PartialSoftmax<kLaneColumns>& softmax) const {
    for (int step = lanes_; step < static_cast<int>(kWarp); step *= 2) {
      const float max = __shfl_xor_sync(kAllLanes, softmax.max, step);
      const float sum = __shfl_xor_sync(kAllLanes, softmax.sum, step);
      float out[kLaneColumns];
#pragma unroll
      for (int i = 0; i < kLaneColumns; ++i) {
        out[i] = __shfl_xor_sync(kAllLanes, softmax.out[i], step);
      }
      softmax.join(max, sum, out);
    }
    const auto lane = static_cast<int>(threadIdx.x % kWarp);
    const auto warp = static_cast<int>(threadIdx.x / kWarp);
    if (lane == 0) {
      warp_max_[warp] = softmax.max;
      warp_sum_[warp] = softmax.sum;
    }
    if (lane < lanes_) {
#pragma unroll
      for (int i = 0; i < kLaneColumns; ++i) {
        warp_out_[warp * dim_ + column_ + i] = softmax.out[i];
      }
    }
  }

  __device__ void store(const Part& part) const {
    for (auto c = static_cast<int>(threadIdx.x); c < dim_; c += static_cast<int>(blockDim.x)) {
      float max = warp_max_[0];  // finite in the end: no part is without a key
      for (int w = 1; w < warps_; ++w) {
        max = fmaxf(max, warp_max_[w]);
      }
      float sum = 0.0F;
      float out = 0.0F;
#pragma unroll 4
      for (int w = 0; w < warps_; ++w) {
        const float weight = expf(warp_max_[w] - max);
        sum += weight * warp_sum_[w];
        out += weight * warp_out_[w * dim_ + c];
      }
      args_.part_out[part.index * args_.shape.width + part.head * dim_ + c] = out;
      if (c == 0) {
        args_.part_max[part.index * args_.shape.heads + part.head] = max;
        args_.part_sum[part.index * args_.shape.heads + part.head] = sum;
      }
    }
  }

  const PassArgs& args_;
  int dim_, warps_;
  float* query_;
  bf16* key_;
  bf16* value_;
  float* warp_max_;  // [warps]
  float* warp_sum_;  // [warps]
  float* warp_out_;  // [warps, D]
  int lanes_, groups_, group_, column_;
  int position_, part_keys_, parts_;
  Loads first_;
};

}  // namespace carope::cuda
