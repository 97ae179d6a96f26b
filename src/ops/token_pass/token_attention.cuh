#pragma once

#include "ops/attention/partial_softmax.cuh"
#include "ops/cuda/tensor_core.cuh"
#include "ops/token_pass/token_pass.cuh"

namespace carope::cuda {

/// A token's attention as the blocks of a token pass share it: a block has one head and a part of
/// its keys, or nothing. D / 8 lanes share a key. A part is as many keys as are on their way at
/// once, if that makes not too many parts: every block reads the results of all.
template <class Shape>
class TokenAttention {
 public:
  __device__ TokenAttention(const PassArgs& args, const TokenPart& part, std::byte* shared,
                            const PassMemory& at)
      : args_(args),
        shape_(args.shape),
        part_(part),
        dim_(shape_.dim),
        query_(reinterpret_cast<bf16*>(shared + at.head)),
        key_(query_ + dim_),
        value_(key_ + dim_),
        warp_max_(reinterpret_cast<float*>(shared + at.parts)),
        warp_sum_(warp_max_ + 2 * kPassWarps),
        warp_out_(warp_sum_ + kPassWarps),
        cached_(reinterpret_cast<bf16*>(shared + at.cached) + threadIdx.x * kLaneColumns),
        lane_(static_cast<int>(threadIdx.x % kWarp)),
        warp_(static_cast<int>(threadIdx.x / kWarp)),
        lanes_(dim_ / kLaneColumns),
        groups_(kPassThreads / lanes_),
        group_(static_cast<int>(threadIdx.x) / lanes_),
        column_(static_cast<int>(threadIdx.x) % lanes_ * kLaneColumns) {}

  /// Asks for a layer's first keys and values, which no block writes in this launch, but for the
  /// token's.
  __device__ void prepare(const LayerPointers& layer) const {
    if (part_.works()) {
      load(layer, part_.first);
    }
  }

  /// Waits for q, k and v, turns them, publishes the part's result and puts the token's k and v
  /// into the cache.
  __device__ void run(const LayerPointers& layer, const PairTurns& turns, std::uint32_t tag) {
    if (!part_.works()) {
      return;
    }
    const float slope = args_.slopes != nullptr ? args_.slopes[part_.head] : 0.0F;
    if (warp_ == 0) {
      rotate(turns, tag);
    }
    const Round round = take(layer, part_.first);
    sync_pass();
    const float max = attend(layer, slope, round);
    sync_pass();
    publish_part(max, tag);
    if (const auto i = static_cast<int>(threadIdx.x); i < dim_ && part_.has_token()) {
      const int place = part_.position * shape_.width + part_.head * dim_ + i;
      layer.keys[place] = key_[i];
      layer.values[place] = value_[i];
    }
  }

  /// Waits for all of several parts. Their result, as bf16 [C], in this block's shared memory.
  __device__ void join_parts(bf16* attended, std::uint32_t tag) const {
    constexpr int kAtOnce = 3;
    const int width = shape_.width;
    const int heads = shape_.heads;
    for (auto c = static_cast<int>(threadIdx.x) * 2; c < width; c += kPassThreads * 2) {
      const int h = c / dim_;
      PartialSoftmax<2> all;
      for (int begin = 0; begin < part_.parts; begin += kAtOnce) {
        std::uint32_t values[2 * kAtOnce][2];
        await(
            tag, values,
            [&](int i) {
              const int part = begin + i / 2;
              return i % 2 == 0 ? args_.part_softmax.own((part * heads + h) * 2)
                                : args_.part_out.own(part * width + c);
            },
            [&](int i) { return begin + i / 2 < part_.parts; });
        float max[kAtOnce];
        float largest = tiled::kNegativeInfinity;
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          max[i] = begin + i < part_.parts ? __uint_as_float(values[2 * i][0])
                                           : tiled::kNegativeInfinity;
          largest = fmaxf(largest, max[i]);
        }
        const float shift = all.raise(largest);
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const float weight = exponential(max[i] - shift);
          all.sum += weight * __uint_as_float(values[2 * i][1]);
          all.out[0] += weight * __uint_as_float(values[2 * i + 1][0]);
          all.out[1] += weight * __uint_as_float(values[2 * i + 1][1]);
        }
      }
      const float result[2] = {__fdividef(all.out[0], all.sum), __fdividef(all.out[1], all.sum)};
      pack<bf16>(result).store(attended + c);
    }
  }

 private:
  static constexpr int kKeysAtOnce = keys_at_once(Shape::kVectors);
  static constexpr int kFewestLanes = 4;  // of heads of 32

  using Row = RawRow<bf16, kLaneColumns>;

  /// What a thread has of as many keys and values as are on their way at once.
  struct Round {
    Row keys[kKeysAtOnce], values[kKeysAtOnce];
  };

  // What this thread has of the key number j of its group's, or of the value, before it needs it.
  __device__ bf16* cached_key(int j) const { return cached_ + j * kPassThreads * kLaneColumns; }
  __device__ bf16* cached_value(int j) const { return cached_key(kKeysAtOnce + j); }

  /// Key number j of a group's from `start` on, which may be past the end.
  __device__ int key_at(int start, int j) const { return start + j * groups_ + group_; }

  /// Asks for the keys and values that a group has from key `start` on; past those in the cache for
  /// the last one again.
  __device__ void load(const LayerPointers& layer, int start) const {
#pragma unroll 1
    for (int j = 0; j < kKeysAtOnce && start + j * groups_ < part_.cached(); ++j) {
      const int key = min(key_at(start, j), part_.cached() - 1);
      const int place = key * shape_.width + part_.head * dim_ + column_;
      copy_16_bytes(shared_address(cached_key(j)), layer.keys + place, true);
      copy_16_bytes(shared_address(cached_value(j)), layer.values + place, true);
    }
    close_copies();
  }

  /// Takes what was asked for, each thread what it has asked for itself, and asks for what follows.
  /// The first is taken before the query is there: all warps at once wait for shared memory as long
  /// as their scores take.
  __device__ Round take(const LayerPointers& layer, int start) const {
    wait_for_copies<0>();
    Round round;
#pragma unroll
    for (int j = 0; j < kKeysAtOnce; ++j) {
      round.keys[j] = Row::load(cached_key(j));
      round.values[j] = start + j * groups_ < part_.cached() ? Row::load(cached_value(j)) : Row{};
    }
    if (const int next = start + kKeysAtOnce * groups_; next < part_.cached()) {
      load(layer, next);
    }
    return round;
  }

  /// Puts the token's own key and value into their place.
  __device__ void put_own(int start, Round& round) const {
#pragma unroll
    for (int j = 0; j < kKeysAtOnce; ++j) {
      if (key_at(start, j) == part_.position) {
        round.keys[j] = Row::load(key_ + column_);
        round.values[j] = Row::load(value_ + column_);
      }
    }
  }

  /// In three instructions, not nine. It is some units off in the last place, and so are the
  /// quotients here; but results are rounded to bf16.
  __device__ static float exponential(float x) {
    constexpr float kLog2E = 1.44269504F;
    return fast_exp2(x * kLog2E);
  }

  /// Of a word of two bf16, the element of this number.
  __device__ static float element(std::uint32_t word, int index) {
    return __uint_as_float(index % 2 == 0 ? word << 16 : word & 0xFFFF0000);
  }

  /// By the first warp: q, k and v in shared memory.
  __device__ void rotate(const PairTurns& turns, std::uint32_t tag) const {
#pragma unroll
    for (int n = 0; n < kLanePairs; ++n) {
      const int p = n * static_cast<int>(kWarp) + lane_;
      if (p >= dim_ / 2) {
        break;
      }
      const int at[2] = {p * args_.head.step, p * args_.head.step + args_.head.partner};
      std::uint32_t words[6][1];  // two of q, k and v each
      const TaggedWord* first = args_.qkv.first + part_.head * (dim_ / 2);
      float sine = 0.0F;
      float cosine = 1.0F;
      if (args_.has_gate || args_.increments != nullptr) {
        sincos_turns<bf16>(turns.turns[n], sine, cosine);
      }
      await(
          tag, words, [&](int i) { return first + i / 2 * (shape_.width / 2) + at[i % 2] / 2; },
          [](int) { return true; });
      float query[2] = {element(words[0][0], at[0]), element(words[1][0], at[1])};
      float key[2] = {element(words[2][0], at[0]), element(words[3][0], at[1])};
      const float value[2] = {element(words[4][0], at[0]), element(words[5][0], at[1])};
      turn(sine, cosine, query);
      turn(sine, cosine, key);
      // A phase in turns cannot be NaN, so a NaN logit is put into the query, as in carope().
      query[0] = p == 0 && isnan(turns.logit) ? turns.logit : query[0];
#pragma unroll
      for (int side = 0; side < 2; ++side) {
        query_[at[side]] = from_float<bf16>(query[side]);
        key_[at[side]] = from_float<bf16>(key[side]);
        value_[at[side]] = from_float<bf16>(value[side]);
      }
    }
  }

  __device__ static void turn(float sine, float cosine, float (&pair)[2]) {
    const float x = pair[0];
    pair[0] = x * cosine - pair[1] * sine;
    pair[1] = x * sine + pair[1] * cosine;
  }

  /// Leaves the sums of each warp in shared memory, of exponentials relative to the part's largest
  /// score, which it returns. `round` is the first.
  __device__ float attend(const LayerPointers& layer, float slope, Round round) const {
    const Row query = Row::load(query_ + column_);
    float max = tiled::kNegativeInfinity;
    float sum = 0.0F;
    float out[kLaneColumns] = {};
    int side = 0;  // of the places for maxima: some may still read those of the round before
    int start = part_.first;
    while (true) {
      if (part_.has_token()) {
        put_own(start, round);
      }
      float scores[kKeysAtOnce];
      score(query, round.keys, scores);
      float largest = tiled::kNegativeInfinity;
#pragma unroll
      for (int j = 0; j < kKeysAtOnce; ++j) {
        const int key = key_at(start, j);
        const float bias = slope * static_cast<float>(part_.position - key);
        scores[j] =
            key < part_.last ? fmaf(scores[j], args_.scale, -bias) : tiled::kNegativeInfinity;
        largest = fmaxf(largest, scores[j]);
      }
      const float shift = block_max(largest, max, warp_max_ + side * kPassWarps);
      const float shrink = exponential(max - shift);
      max = shift;
      sum *= shrink;
#pragma unroll
      for (float& o : out) {
        o *= shrink;
      }
#pragma unroll
      for (int j = 0; j < kKeysAtOnce; ++j) {
        const float e = exponential(scores[j] - shift);
        float v[kLaneColumns];
        unpack(round.values[j], v);
        sum += e;
#pragma unroll
        for (int i = 0; i < kLaneColumns; ++i) {
          out[i] += e * v[i];
        }
      }
      start += kKeysAtOnce * groups_;
      if (start >= part_.last) {
        break;
      }
      side ^= 1;
      round = take(layer, start);
    }
    add_groups(sum, out);
    return max;
  }

  /// The products of the query and a group's keys, in all lanes of the group. Tensor cores multiply
  /// what each four lanes have of a key by what each four have of the query, and a lane takes a
  /// product of the same columns: to take numbers apart and multiply them one by one would take
  /// five times the instructions.
  __device__ void score(const Row& query, const Row (&keys)[kKeysAtOnce],
                        float (&scores)[kKeysAtOnce]) const {
    const int fours = lanes_ / kFewestLanes;  // of a key
    const int four = lane_ / kFewestLanes;
    const bool odd = four % 2 == 1;
    const int column = 2 * (lane_ % kFewestLanes) + four % 2;  // of the products
    const bool own = (column - four) % fours == 0;             // or its neighbour's is
#pragma unroll
    for (int j = 0; j < kKeysAtOnce; j += 2) {
      float products[4] = {};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const auto word = [&](const Row& row, int index) { return row.words.at[2 * half + index]; };
        multiply_add(products,
                     Fragment{{word(keys[j], 0), word(keys[j + 1], 0), word(keys[j], 1),
                               word(keys[j + 1], 1)}},
                     word(query, 0), word(query, 1));
      }
      scores[j] = own ? (odd ? products[1] : products[0]) : 0.0F;
      scores[j + 1] = own ? (odd ? products[3] : products[2]) : 0.0F;
    }
#pragma unroll
    for (const int step : {1, kFewestLanes, 2 * kFewestLanes}) {
      if (step == kFewestLanes ? fours > 1 : fours > 2) {
#pragma unroll
        for (float& x : scores) {
          x += __shfl_xor_sync(kAllLanes, x, step);
        }
      }
    }
  }

  /// The largest of `before` and what the block's threads have, in lanes that share a key the same.
  __device__ float block_max(float x, float before, float* warps) const {
#pragma unroll
    for (int step = kFewestLanes; step < static_cast<int>(kWarp); step *= 2) {
      if (step >= lanes_) {
        x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, step));
      }
    }
    if (lane_ == 0) {
      warps[warp_] = x;
    }
    sync_pass();
    float maxima[kPassWarps];
    load_floats(warps, maxima);
    x = before;
#pragma unroll
    for (const float other : maxima) {
      x = fmaxf(x, other);
    }
    return x;
  }

  /// Adds up the groups of each warp. At every step a lane gives away half of the columns that it
  /// has, and gets the other half of its partner's.
  __device__ void add_groups(float sum, float (&out)[kLaneColumns]) const {
    int column = column_;
    int step = lanes_;
#pragma unroll
    for (int half = kLaneColumns / 2; half > 0; half /= 2, step *= 2) {
      if (step < static_cast<int>(kWarp)) {
        const bool upper = (lane_ & step) != 0;
#pragma unroll
        for (int i = 0; i < half; ++i) {
          const float given = upper ? out[i] : out[half + i];
          const float kept = upper ? out[half + i] : out[i];
          out[i] = kept + __shfl_xor_sync(kAllLanes, given, step);
        }
        column += upper ? half : 0;
        sum += __shfl_xor_sync(kAllLanes, sum, step);
      }
    }
    if (lane_ == 0) {
      warp_sum_[warp_] = sum;
    }
    constexpr int kMostColumns = 4;  // that a lane has in the end
#pragma unroll
    for (int i = 0; i < kMostColumns; ++i) {
      if (i < dim_ / static_cast<int>(kWarp)) {
        warp_out_[warp_ * dim_ + column + i] = out[i];
      }
    }
  }

  __device__ void publish_part(float max, std::uint32_t tag) const {
    constexpr int kColumns = 2;  // of a thread
    const int threads = dim_ / kColumns;
    const auto i = static_cast<int>(threadIdx.x);
    if (i >= threads * kCopies) {
      return;
    }
    const int c = i % threads * kColumns;
    const int copy = i / threads;
    const int column = part_.head * dim_ + c;
    float sums[kPassWarps];
    load_floats(warp_sum_, sums);
    float sum = 0.0F;
    float out[kColumns] = {};
#pragma unroll
    for (int w = 0; w < kPassWarps; ++w) {
      const auto columns = Vec<float, kColumns>::load(warp_out_ + w * dim_ + c);
      sum += sums[w];
      out[0] += columns.at[0];
      out[1] += columns.at[1];
    }
    if (part_.parts == 1) {
      publish(args_.inputs[kAttentionOut].at(copy, column / kColumns),
              packed_pair(__fdividef(out[0], sum), __fdividef(out[1], sum)), tag);
      return;
    }
    TaggedWord* to = args_.part_out.at(copy, part_.index * shape_.width + column);
    publish(to, out[0], tag);
    publish(to + 1, out[1], tag);
    if (c == 0) {
      to = args_.part_softmax.at(copy, (part_.index * shape_.heads + part_.head) * 2);
      publish(to, max, tag);
      publish(to + 1, sum, tag);
    }
  }

  const PassArgs& args_;
  Shape shape_;
  TokenPart part_;
  int dim_;
  bf16* query_;
  bf16* key_;
  bf16* value_;
  float* warp_max_;  // [2, warps]
  float* warp_sum_;  // [warps]
  float* warp_out_;  // [warps, D]
  bf16* cached_;     // [2, kKeysAtOnce] rows, each as far from the next as threads have theirs
  int lane_, warp_;
  int lanes_, groups_, group_, column_;
};

}  // namespace carope::cuda
