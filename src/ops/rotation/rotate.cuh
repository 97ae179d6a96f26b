#pragma once

#include <initializer_list>

#include "ops/cuda/kernel.cuh"
#include "ops/cuda/sequence.cuh"
#include "ops/rotation.h"
#include "ops/rotation/direction.h"

// How rotary kernels see q and k: a thread works on a group of neighbouring pairs of one head.
namespace carope::cuda {

inline constexpr int kGroup = 8;  // pairs: 16 bytes of bf16 a side
inline constexpr int kRotaryThreads = 256;

/// How a group is moved: with wide accesses in one of the two layouts, or element by element.
enum class Access : std::uint8_t { kHalf, kInterleaved, kAny };

struct HeadShape {
  int pairs;
  int step;     // from a pair's first element to the next pair's
  int partner;  // from a pair's first element to its second

  HeadShape(std::int64_t count, RotaryLayout layout)
      : pairs(static_cast<int>(count)),
        step(layout == RotaryLayout::kHalf ? 1 : 2),
        partner(layout == RotaryLayout::kHalf ? pairs : 1) {}

  __host__ __device__ int groups() const { return (pairs + kGroup - 1) / kGroup; }
};

/// Heads as kernels see them.
struct HeadRows {
  void* data;
  std::int64_t row_stride, token_stride, head_stride;  // in elements
  int count;

  HeadRows(const Heads& heads)
      : data(heads.data),
        row_stride(heads.row_stride),
        token_stride(heads.token_stride),
        head_stride(heads.head_stride),
        count(static_cast<int>(heads.count)) {}

  template <class T>
  __device__ T* at(int row, int token, int head) const {
    return static_cast<T*>(data) + row * row_stride + token * token_stride + head * head_stride;
  }
};

/// carope::Rotation as kernels see it, with null for what is not there.
struct RotationArgs {
  HeadRows q, k;
  HeadShape head;
  float magnitude;
  const std::uint32_t* increments;  // [P]
  const float* logits;              // [B, T, K]
  const double* ratios;             // [P]
  int exponent_start;
  std::uint32_t* carry;   // [B, chunks, K, P]
  std::uint32_t* state;   // [B, K, P]
  std::uint16_t* phases;  // [B, T, K, P]
  Positions positions;
  int batch;
  int group;  // query heads that share a key head

  RotationArgs(const Rotation& rotation, const Sequence& seq)
      : q(rotation.q),
        k(rotation.k),
        head(rotation.pairs, rotation.layout),
        magnitude(rotation.magnitude),
        increments(data_of<std::uint32_t>(rotation.increments)),
        logits(data_of<float>(rotation.logits)),
        ratios(data_of<double>(rotation.ratios)),
        exponent_start(static_cast<int>(rotation.exponent_start)),
        carry(data_of<std::uint32_t>(rotation.carry)),
        state(data_of<std::uint32_t>(rotation.state)),
        phases(data_of<std::uint16_t>(rotation.phases)),
        positions(seq),
        batch(static_cast<int>(seq.batch)),
        group(k.count > 0 ? q.count / k.count : 1) {}
};

/// Sixteen elements in registers. Those of bf16 stay packed, two a register.
template <class T>
class Packed;

template <>
class Packed<float> {
 public:
  __device__ float at(int i) const { return side_[i / kGroup].at[i % kGroup]; }
  __device__ void set_two(int i, float a, float b) {
    side_[i / kGroup].at[i % kGroup] = a;
    side_[i / kGroup].at[i % kGroup + 1] = b;
  }
  __device__ void load(int side, const float* from) {
    side_[side] = Vec<float, kGroup>::load(from);
  }
  __device__ void store(int side, float* to) const { side_[side].store(to); }

 private:
  Vec<float, kGroup> side_[2];
};

template <>
class Packed<bf16> {
 public:
  __device__ float at(int i) const {
    const std::uint32_t word = side_[i / kGroup].at[i % kGroup / 2];
    return __uint_as_float(i % 2 == 0 ? word << 16 : word & 0xFFFF0000U);
  }
  __device__ void set_two(int i, float a, float b) {
    const __nv_bfloat162 two = __floats2bfloat162_rn(a, b);
    side_[i / kGroup].at[i % kGroup / 2] = *reinterpret_cast<const std::uint32_t*>(&two);
  }
  __device__ void load(int side, const bf16* from) {
    side_[side] =
        Vec<std::uint32_t, kGroup / 2>::load(reinterpret_cast<const std::uint32_t*>(from));
  }
  __device__ void store(int side, bf16* to) const {
    side_[side].store(reinterpret_cast<std::uint32_t*>(to));
  }

 private:
  Vec<std::uint32_t, kGroup / 2> side_[2];
};

__device__ inline void prefetch_l2(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

/// Eight pairs (x, y) of a head, as they lie in memory. What lies past the head's last pair is 0.
template <class T, Access kAccess>
class Group {
 public:
  __device__ static Group load(const T* head, const HeadShape& shape, int group) {
    Group result;
    if constexpr (kAccess == Access::kAny) {
      const auto element = [&](int i, int side) {
        const int pair = group * kGroup + i;
        return pair < shape.pairs ? to_float(head[pair * shape.step + side * shape.partner]) : 0.0F;
      };
#pragma unroll
      for (int i = 0; i < kGroup; i += 2) {
        result.set_two(i, element(i, 0), element(i, 1), element(i + 1, 0), element(i + 1, 1));
      }
    } else {
      result = load(head + first(group), head + second(shape, group));
    }
    return result;
  }
  /// The same from the two places, each of eight elements, that a group lies in.
  __device__ static Group load(const T* first, const T* second) {
    Group result;
    result.values_.load(0, first);
    result.values_.load(1, second);
    return result;
  }

  /// Brings a group that is loaded soon into the L2 cache; that takes no registers.
  __device__ static void prefetch(const T* head, const HeadShape& shape, int group) {
    if constexpr (kAccess != Access::kAny) {
      prefetch_l2(head + first(group));
      prefetch_l2(head + second(shape, group));
    }
  }

  __device__ void store(T* head, const HeadShape& shape, int group) const {
    if constexpr (kAccess == Access::kAny) {
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        const int pair = group * kGroup + i;
        if (pair < shape.pairs) {
          head[pair * shape.step] = from_float<T>(x(i));
          head[pair * shape.step + shape.partner] = from_float<T>(y(i));
        }
      }
    } else {
      store(head + first(group), head + second(shape, group));
    }
  }
  __device__ void store(T* first, T* second) const {
    values_.store(0, first);
    values_.store(1, second);
  }

  __device__ float x(int i) const {
    return values_.at(kAccess == Access::kInterleaved ? 2 * i : i);
  }
  __device__ float y(int i) const {
    return values_.at(kAccess == Access::kInterleaved ? 2 * i + 1 : kGroup + i);
  }
  /// Replaces pairs i, an even number, and i + 1.
  __device__ void set_two(int i, float x0, float y0, float x1, float y1) {
    if constexpr (kAccess == Access::kInterleaved) {
      values_.set_two(2 * i, x0, y0);
      values_.set_two(2 * i + 2, x1, y1);
    } else {
      values_.set_two(i, x0, x1);
      values_.set_two(kGroup + i, y0, y1);
    }
  }

 private:
  __device__ static int first(int group) {
    return (kAccess == Access::kHalf ? 1 : 2) * kGroup * group;
  }
  __device__ static int second(const HeadShape& shape, int group) {
    return first(group) + (kAccess == Access::kHalf ? shape.pairs : kGroup);
  }

  Packed<T> values_;
};

/// Sine and cosine of an angle in turns, as an unsigned 32-bit fraction. The wrap is exact. For
/// bf16 the special function unit is good enough: it is off by at most 2^-21.
template <class T>
__device__ void sincos_turns(std::uint32_t turns, float& sine, float& cosine) {
  constexpr float kRadians = 1.46291808e-9F;  // 2 pi / 2^32
  if constexpr (sizeof(T) == 2) {
    const float x = static_cast<float>(static_cast<std::int32_t>(turns)) * kRadians;
    sine = __sinf(x);
    cosine = __cosf(x);
  } else {
    const std::uint32_t quarter = (turns + (1U << 29)) >> 30;
    const float x =
        static_cast<float>(static_cast<std::int32_t>(turns - (quarter << 30))) * kRadians;
    const float y = x * x;
    float s = fmaf(2.71735321e-6F, y, -1.98392031e-4F);
    s = fmaf(s, y, 8.33332879e-3F);
    s = fmaf(s, y, -1.66666666e-1F);
    s = fmaf(s * y, x, x);
    float c = fmaf(2.43799293e-5F, y, -1.38866192e-3F);
    c = fmaf(c, y, 4.16666167e-2F);
    c = fmaf(c, y, -4.99999996e-1F);
    c = fmaf(c, y, 1.0F);
    const bool swapped = (quarter & 1U) != 0;
    sine = swapped ? c : s;
    cosine = swapped ? s : c;
    sine = (quarter & 2U) != 0 ? -sine : sine;
    cosine = ((quarter + 1U) & 2U) != 0 ? -cosine : cosine;
  }
}

/// The rotation of a group by one phase a pair.
struct GroupRotation {
  float sine[kGroup];
  float cosine[kGroup];

  template <class T>
  __device__ static GroupRotation by(const std::uint32_t (&phase)[kGroup], Direction direction,
                                     float magnitude = 1.0F) {
    GroupRotation rotation;
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      const std::uint32_t turns = direction == Direction::kForward ? phase[i] : 0U - phase[i];
      sincos_turns<T>(turns, rotation.sine[i], rotation.cosine[i]);
      rotation.sine[i] *= magnitude;
      rotation.cosine[i] *= magnitude;
    }
    return rotation;
  }

  template <class Group>
  __device__ void apply(Group& group) const {
#pragma unroll
    for (int i = 0; i < kGroup; i += 2) {
      group.set_two(i, turned_x(group, i), turned_y(group, i), turned_x(group, i + 1),
                    turned_y(group, i + 1));
    }
  }

 private:
  template <class Group>
  __device__ float turned_x(const Group& group, int i) const {
    return group.x(i) * cosine[i] - group.y(i) * sine[i];
  }
  template <class Group>
  __device__ float turned_y(const Group& group, int i) const {
    return group.x(i) * sine[i] + group.y(i) * cosine[i];
  }
};

template <Access kAccess>
struct AccessTag {
  static constexpr Access value = kAccess;
};

/// Calls visit(T{}, AccessTag{}) with the element type of some heads and the widest access that all
/// of them allow.
template <class Visit>
void visit_groups(std::initializer_list<Heads> all, const HeadShape& shape, const Visit& visit) {
  const DType dtype = all.begin()->dtype;
  bool wide = shape.pairs % kGroup == 0;
  for (const Heads& heads : all) {
    check<ShapeError>(heads.dtype == dtype, "q and k are {}, but their gradients are {}",
                      to_string(dtype), to_string(heads.dtype));
    const auto begin = reinterpret_cast<std::uintptr_t>(heads.data);
    wide = wide && begin % (kGroup * size_of(dtype)) == 0;
    for (const std::int64_t stride : {heads.row_stride, heads.token_stride, heads.head_stride}) {
      wide = wide && stride % kGroup == 0;
    }
  }
  visit_float(dtype, [&](auto zero) {
    if (!wide) {
      visit(zero, AccessTag<Access::kAny>{});
    } else if (shape.step == 1) {
      visit(zero, AccessTag<Access::kHalf>{});
    } else {
      visit(zero, AccessTag<Access::kInterleaved>{});
    }
  });
}

}  // namespace carope::cuda
