#pragma once

#include "ops/partial_softmax.cuh"
#include "ops/token_pass.cuh"

namespace carope::cuda {

/// A token's attention as the blocks of a token pass share it: a block has one head and a part of
/// the keys, or several such in turns. D / 8 lanes share a key; every such group of lanes has a
/// softmax of its own until the end. A part is as many keys as are on their way at once, if that
/// makes not too many parts: every block reads the results of all.
template <class Shape>
class TokenAttention {
 public:
  __device__ TokenAttention(const PassArgs& args, std::byte* parts, std::byte* head)
      : args_(args),
        shape_(args.shape),
        dim_(shape_.dim),
        query_(reinterpret_cast<float*>(head)),
        key_(reinterpret_cast<bf16*>(query_ + dim_)),
        value_(key_ + dim_),
        warp_max_(reinterpret_cast<float*>(parts)),
        warp_sum_(warp_max_ + kPassWarps),
        warp_out_(warp_sum_ + kPassWarps),
        lanes_(dim_ / kLaneColumns),
        groups_(kPassThreads / lanes_),
        group_(static_cast<int>(threadIdx.x) / lanes_),
        column_(static_cast<int>(threadIdx.x) % lanes_ * kLaneColumns),
        position_(*args.position) {
    const int round_keys = kKeysAtOnce * groups_;
    const int rounds = position_ / round_keys + 1;
    part_keys_ = (rounds + args.most_parts - 1) / args.most_parts * round_keys;
    parts_ = position_ / part_keys_ + 1;
  }

  /// Asks for the first keys and values, which no block writes in this launch, but for the token's.
  __device__ void prepare(const LayerPointers& layer) {
    const auto unit = static_cast<int>(blockIdx.x);
    if (unit < shape_.heads * parts_) {
      const Part part = part_of(unit);
      load(layer.keys, part, part.first, keys_);
      load(layer.values, part, part.first, values_);
    }
  }

  /// Waits for q, k and v, rotates them, puts the token's k and v into the cache and publishes the
  /// parts' results.
  __device__ void run(const LayerPointers& layer, std::uint32_t tag) {
    for (auto unit = static_cast<int>(blockIdx.x); unit < shape_.heads * parts_;
         unit += static_cast<int>(gridDim.x)) {
      const Part part = part_of(unit);
      if (unit != static_cast<int>(blockIdx.x)) {
        sync_pass();  // the part before is published
        load(layer.keys, part, part.first, keys_);
        load(layer.values, part, part.first, values_);
      }
      const float slope = args_.slopes != nullptr ? args_.slopes[part.head] : 0.0F;
      rotate(layer, part, tag);
      sync_pass();
      PartialSoftmax<kLaneColumns> softmax = attend(layer, part, slope);
      join_groups(softmax);
      sync_pass();
      publish_part(part, tag);
    }
  }

  /// Waits for all parts. Their result, as bf16 [C], in this block's shared memory.
  __device__ void join_parts(bf16* attended, std::uint32_t tag) const {
    constexpr int kAtOnce = 6;
    const int width = shape_.width;
    const int heads = shape_.heads;
    const TaggedWord* softmaxes = args_.part_softmax.own();
    const TaggedWord* outs = args_.part_out.own();
    for (auto c = static_cast<int>(threadIdx.x) * 2; c < width; c += kPassThreads * 2) {
      const int h = c / dim_;
      PartialSoftmax<2> all;
      for (int begin = 0; begin < parts_; begin += kAtOnce) {
        const TaggedWord* places[2 * kAtOnce];
        std::uint32_t values[2 * kAtOnce][2];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const int part = begin + i;
          const bool exists = part < parts_;
          places[2 * i] = exists ? softmaxes + (part * heads + h) * 2 : nullptr;
          places[2 * i + 1] = exists ? outs + part * width + c : nullptr;
        }
        await(places, tag, values);
        float max[kAtOnce];
        float largest = tiled::kNegativeInfinity;
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          max[i] =
              begin + i < parts_ ? __uint_as_float(values[2 * i][0]) : tiled::kNegativeInfinity;
          largest = fmaxf(largest, max[i]);
        }
        const float shift = all.raise(largest);
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const float weight = expf(max[i] - shift);
          all.sum += weight * __uint_as_float(values[2 * i][1]);
          all.out[0] += weight * __uint_as_float(values[2 * i + 1][0]);
          all.out[1] += weight * __uint_as_float(values[2 * i + 1][1]);
        }
      }
      const float result[2] = {all.out[0] / all.sum, all.out[1] / all.sum};
      pack<bf16>(result).store(attended + c);
    }
  }

 private:
  static constexpr int kKeysAtOnce = 4;  // of a group, on their way

  using Row = RawRow<bf16, kLaneColumns>;

  struct Part {
    int head, index;
    int first, last;  // keys
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

  /// Asks for the rows of a cache that a group has from key `start` on.
  __device__ void load(const bf16* cache, const Part& part, int start,
                       Row (&rows)[kKeysAtOnce]) const {
#pragma unroll
    for (int j = 0; j < kKeysAtOnce; ++j) {
      if (start + j * groups_ < part.last) {
        rows[j] =
            Row::load(cache + static_cast<std::int64_t>(key_at(part, start, j)) * shape_.width +
                      part.head * dim_ + column_);
      }
    }
  }

  /// Of a word of two bf16, the element of this number.
  __device__ static float element(std::uint32_t word, int index) {
    return __uint_as_float(index % 2 == 0 ? word << 16 : word & 0xFFFF0000);
  }

  __device__ void rotate(const LayerPointers& layer, const Part& part, std::uint32_t tag) const {
    const int width = shape_.width;
    const int pairs = dim_ / 2;
    const bool appends = part.last == position_ + 1;
    const std::int64_t place = static_cast<std::int64_t>(position_) * width + part.head * dim_;
    for (auto p = static_cast<int>(threadIdx.x); p < pairs; p += kPassThreads) {
      const int at[2] = {p * args_.head.step, p * args_.head.step + args_.head.partner};
      const TaggedWord* places[8];
      std::uint32_t words[8][1];
#pragma unroll
      for (int i = 0; i < 3; ++i) {  // q, k, v
        const TaggedWord* row = args_.qkv + (i * width + part.head * dim_) / 2;
        places[2 * i] = row + at[0] / 2;
        places[2 * i + 1] = row + at[1] / 2;
      }
      places[6] = args_.has_gate ? args_.phases + part.head * pairs + p : nullptr;
      places[7] = args_.has_gate ? args_.gate_logits + part.head : nullptr;
      await(places, tag, words);
      float query[2] = {element(words[0][0], at[0]), element(words[1][0], at[1])};
      float key[2] = {element(words[2][0], at[0]), element(words[3][0], at[1])};
      const float value[2] = {element(words[4][0], at[0]), element(words[5][0], at[1])};
      if (args_.has_gate) {
        turn(words[6][0], query, key);
        // A phase in turns cannot be NaN, so a NaN logit is put into the query, as in carope().
        const float logit = __uint_as_float(words[7][0]);
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
                                                 float slope) {
    float q[kLaneColumns];
#pragma unroll
    for (int i = 0; i < kLaneColumns; ++i) {
      q[i] = query_[column_ + i] * args_.scale;
    }
    PartialSoftmax<kLaneColumns> softmax;
    const int round_keys = kKeysAtOnce * groups_;
    for (int start = part.first; start < part.last; start += round_keys) {
      float scores[kKeysAtOnce];
      float largest = tiled::kNegativeInfinity;
#pragma unroll
      for (int j = 0; j < kKeysAtOnce; ++j) {
        if (key_at(part, start, j) == position_) {  // not in the cache when that was read
          keys_[j] = Row::load(key_ + column_);
          values_[j] = Row::load(value_ + column_);
        }
        float k[kLaneColumns];
        unpack(keys_[j], k);
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
      load(layer.keys, part, start + round_keys, keys_);
      const float shift = softmax.raise(largest);
#pragma unroll
      for (int j = 0; j < kKeysAtOnce; ++j) {
        const float e = expf(scores[j] - shift);
        float v[kLaneColumns];
        unpack(values_[j], v);
        softmax.sum += e;
#pragma unroll
        for (int i = 0; i < kLaneColumns; ++i) {
          softmax.out[i] += e * v[i];
        }
      }
      load(layer.values, part, start + round_keys, values_);
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

  __device__ void publish_part(const Part& part, std::uint32_t tag) const {
    for (auto i = static_cast<int>(threadIdx.x); i < dim_ * kCopies; i += kPassThreads) {
      const int c = i % dim_;
      const int copy = i / dim_;
      float max = warp_max_[0];  // finite in the end: no part is without a key
#pragma unroll
      for (int w = 1; w < kPassWarps; ++w) {
        max = fmaxf(max, warp_max_[w]);
      }
      float sum = 0.0F;
      float out = 0.0F;
#pragma unroll
      for (int w = 0; w < kPassWarps; ++w) {
        const float weight = expf(warp_max_[w] - max);
        sum += weight * warp_sum_[w];
        out += weight * warp_out_[w * dim_ + c];
      }
      publish(args_.part_out.copy(copy) + part.index * shape_.width + part.head * dim_ + c, out,
              tag);
      if (c == 0) {
        TaggedWord* softmax =
            args_.part_softmax.copy(copy) + (part.index * shape_.heads + part.head) * 2;
        publish(softmax, max, tag);
        publish(softmax + 1, sum, tag);
      }
    }
  }

  const PassArgs& args_;
  Shape shape_;
  int dim_;
  float* query_;
  bf16* key_;
  bf16* value_;
  float* warp_max_;  // [warps]
  float* warp_sum_;  // [warps]
  float* warp_out_;  // [warps, D]
  int lanes_, groups_, group_, column_;
  int position_, part_keys_, parts_;
  // What a group has read of the caches, before it needs it.
  Row keys_[kKeysAtOnce]{}, values_[kKeysAtOnce]{};
};

}  // namespace carope::cuda
