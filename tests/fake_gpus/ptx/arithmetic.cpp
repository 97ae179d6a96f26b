// Instructions that compute a lane's values from its values.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "instructions.h"

namespace carope::ptx {
namespace {

using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using s16 = std::int16_t;
using s32 = std::int32_t;
using s64 = std::int64_t;

/// to = f(...) in every lane that does the instruction.
template <class To, class F>
void each_lane(Warp& w, To* to, const F& f) {
  const Mask mask = w.mask();
  if (mask == ~Mask{0}) {
#pragma GCC ivdep
    for (int lane = 0; lane < kLanes; ++lane) {
      to[lane] = f(lane);
    }
  } else {
    for (int lane = 0; lane < kLanes; ++lane) {
      if ((mask >> lane & 1) != 0) {
        to[lane] = f(lane);
      }
    }
  }
}

template <class To, class From, auto kF>
void unary(Warp& w, const Instruction& i) {
  const From* a = w.in<From>(i[1]);
  constexpr int kBytes = sizeof(From);
  if (const int step = i[1].bytes / kBytes; step != 1) {  // the lower part of what a register has
    return each_lane(w, w.out<To>(i[0]),
                     [=](int lane) { return static_cast<To>(kF(a[lane * step])); });
  }
  each_lane(w, w.out<To>(i[0]), [=](int lane) { return static_cast<To>(kF(a[lane])); });
}

template <class To, class From, auto kF>
void binary(Warp& w, const Instruction& i) {
  const From* a = w.in<From>(i[1]);
  const From* b = w.in<From>(i[2]);
  each_lane(w, w.out<To>(i[0]), [=](int lane) { return static_cast<To>(kF(a[lane], b[lane])); });
}

template <class To, class From, auto kF>
void ternary(Warp& w, const Instruction& i) {
  const From* a = w.in<From>(i[1]);
  const From* b = w.in<From>(i[2]);
  const To* c = w.in<To>(i[3]);
  each_lane(w, w.out<To>(i[0]),
            [=](int lane) { return static_cast<To>(kF(a[lane], b[lane], c[lane])); });
}

template <class T, auto kF>
void shift(Warp& w, const Instruction& i) {
  const T* a = w.in<T>(i[1]);
  const u32* b = w.in<u32>(i[2]);
  constexpr u32 kMost = sizeof(T) * 8;
  each_lane(w, w.out<T>(i[0]),
            [=](int lane) { return static_cast<T>(kF(a[lane], std::min(b[lane], kMost))); });
}

template <class T, auto kF>
void compare(Warp& w, const Instruction& i) {
  const T* a = w.in<T>(i[1]);
  const T* b = w.in<T>(i[2]);
  Mask result = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    result |= static_cast<Mask>(kF(a[lane], b[lane])) << lane;
  }
  w.set_predicate(i[0], result);
}

template <class T>
void select(Warp& w, const Instruction& i) {
  const T* a = w.in<T>(i[1]);
  const T* b = w.in<T>(i[2]);
  const Mask choice = w.predicate(i[3]);
  each_lane(w, w.out<T>(i[0]),
            [=](int lane) { return (choice >> lane & 1) != 0 ? a[lane] : b[lane]; });
}

template <auto kF>
void logic(Warp& w, const Instruction& i) {
  w.set_predicate(i[0], kF(w.predicate(i[1]), w.predicate(i[i.count - 1])));
}

/// Sums and products keep the lower bits, as those of unsigned numbers do.
template <class T>
struct Integer {
  using U = std::make_unsigned_t<T>;
  static constexpr auto add = [](T a, T b) {
    return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
  };
  static constexpr auto sub = [](T a, T b) {
    return static_cast<T>(static_cast<U>(a) - static_cast<U>(b));
  };
  static constexpr auto mul = [](T a, T b) {
    return static_cast<T>(static_cast<u64>(a) * static_cast<u64>(b));
  };
  static constexpr auto mad = [](T a, T b, T c) { return add(mul(a, b), c); };
  static constexpr auto div = [](T a, T b) {
    return b == 0 || b == static_cast<T>(-1)
               ? (b == 0 ? static_cast<T>(-1)
                         : (std::is_signed_v<T> ? sub(0, a) : static_cast<T>(a / b)))
               : static_cast<T>(a / b);
  };
  static constexpr auto rem = [](T a, T b) {
    return b == 0 ? a
                  : (std::is_signed_v<T> && b == static_cast<T>(-1) ? T{0} : static_cast<T>(a % b));
  };
};

/// The result is infinite or not a number as the GPU's is, which drops signs of zeros at most.
template <class T>
T least(T a, T b) {
  return std::isnan(a) ? b : (std::isnan(b) ? a : std::min(a, b));
}
template <class T>
T most(T a, T b) {
  return std::isnan(a) ? b : (std::isnan(b) ? a : std::max(a, b));
}

/// Results and operands that are no normal numbers count as zero.
float flush(float x) {
  return std::fabs(x) < std::numeric_limits<float>::min() ? std::copysign(0.0F, x) : x;
}

float fused_down(float a, float b, float c) {
  // Of floats the product is exact in double; the sum is rounded toward -infinity twice at most.
  const double sum = static_cast<double>(a) * b + c;
  auto rounded = static_cast<float>(sum);
  return static_cast<double>(rounded) > sum ? std::nextafterf(rounded, -INFINITY) : rounded;
}

u16 to_bf16(float x) {
  const u32 bits = std::bit_cast<u32>(x);
  if (std::isnan(x)) {
    return 0x7FFF;
  }
  return static_cast<u16>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}
u16 to_half(float x) { return std::bit_cast<u16>(static_cast<_Float16>(x)); }

template <auto kF>
void pack_pair(Warp& w, const Instruction& i) {
  const float* high = w.in<float>(i[1]);
  const float* low = w.in<float>(i[2]);
  each_lane(w, w.out<u32>(i[0]),
            [=](int lane) { return static_cast<u32>(kF(high[lane])) << 16 | kF(low[lane]); });
}

template <class To, class From>
To to_integer(From x) {
  if (std::isnan(x)) {
    return 0;
  }
  if (x <= static_cast<From>(std::numeric_limits<To>::min())) {
    return std::numeric_limits<To>::min();
  }
  return x >= static_cast<From>(std::numeric_limits<To>::max()) ? std::numeric_limits<To>::max()
                                                                : static_cast<To>(x);
}

/// mov of a whole value, or of its parts.
template <class Whole>
void move(Warp& w, const Instruction& i) {
  if (i.count == 2) {
    const Whole* from = w.in<Whole>(i[1]);
    return each_lane(w, w.out<Whole>(i[0]), [=](int lane) { return from[lane]; });
  }
  const bool apart = i[0].bytes < static_cast<int>(sizeof(Whole));
  const int parts = i.count - 1;
  const int bytes = static_cast<int>(sizeof(Whole)) / parts;
  for (int lane = 0; lane < kLanes; ++lane) {
    if ((w.mask() >> lane & 1) == 0) {
      continue;
    }
    Whole whole{};
    auto* const whole_bytes = reinterpret_cast<std::byte*>(&whole);
    if (apart) {
      whole = w.in<Whole>(i[parts])[lane];
    }
    for (int part = 0; part < parts; ++part) {
      const Operand& operand = i[apart ? part : part + 1];
      auto* const at = const_cast<std::byte*>(w.in<std::byte>(operand)) + lane * bytes;
      std::memcpy(apart ? at : whole_bytes + part * bytes, apart ? whole_bytes + part * bytes : at,
                  static_cast<std::size_t>(bytes));
    }
    if (!apart) {
      w.out<Whole>(i[0])[lane] = whole;
    }
  }
}
void move_predicate(Warp& w, const Instruction& i) { w.set_predicate(i[0], w.predicate(i[1])); }

void read_special(Warp& w, const Instruction& i) {
  const Launch& launch = w.block().launch();
  const Size at = w.block().at();
  each_lane(w, w.out<u32>(i[0]), [&](int lane) -> u32 {
    const auto thread = static_cast<u32>(w.number() * kLanes + lane);
    const std::array<u32, kSpecial.size()> values{thread % launch.block.x,
                                                  thread / launch.block.x % launch.block.y,
                                                  launch.block.x,
                                                  at.x,
                                                  at.y,
                                                  at.z,
                                                  launch.grid.x,
                                                  launch.grid.y,
                                                  static_cast<u32>(lane),
                                                  ~u32{0} >> (kLanes - 1 - lane),
                                                  w.block().rank()};
    return values[static_cast<std::size_t>(i.special)];
  });
}

u32 permute(u32 a, u32 b, u32 selection) {
  const u64 bytes = static_cast<u64>(b) << 32 | a;
  u32 result = 0;
  for (int n = 0; n < 4; ++n) {
    const u32 nibble = selection >> (4 * n) & 0xF;
    u32 byte = static_cast<u32>(bytes >> (8 * (nibble & 7)) & 0xFF);
    if ((nibble & 8) != 0) {
      byte = (byte & 0x80) != 0 ? 0xFF : 0;
    }
    result |= byte << (8 * n);
  }
  return result;
}

/// The lesser of two pairs of halves, each; what is no number stays none.
u32 least_of_pairs(u32 a, u32 b) {
  u32 result = 0;
  for (int shift = 0; shift < 32; shift += 16) {
    const auto x = std::bit_cast<_Float16>(static_cast<u16>(a >> shift));
    const auto y = std::bit_cast<_Float16>(static_cast<u16>(b >> shift));
    const u16 least = x != x || y != y ? 0x7FFF : std::bit_cast<u16>(y < x ? y : x);
    result |= static_cast<u32>(least) << shift;
  }
  return result;
}

void insert_bits(Warp& w, const Instruction& i) {
  const u32 *a = w.in<u32>(i[1]), *b = w.in<u32>(i[2]), *at = w.in<u32>(i[3]),
            *count = w.in<u32>(i[4]);
  each_lane(w, w.out<u32>(i[0]), [=](int lane) {
    constexpr u32 kMost = 32;
    const u32 shift = std::min(at[lane] & 0xFF, kMost);
    const u64 field = ((u64{1} << std::min(count[lane] & 0xFF, kMost)) - 1) << shift;
    return static_cast<u32>((static_cast<u64>(a[lane]) << shift & field) | (b[lane] & ~field));
  });
}

template <class T>
void add_integers(Table& table, const std::string& type) {
  using I = Integer<T>;
  table["add." + type] = &binary<T, T, I::add>;
  table["sub." + type] = &binary<T, T, I::sub>;
  table["mul.lo." + type] = &binary<T, T, I::mul>;
  table["mad.lo." + type] = &ternary<T, T, I::mad>;
  table["div." + type] = &binary<T, T, I::div>;
  table["rem." + type] = &binary<T, T, I::rem>;
  table["neg." + type] = &unary<T, T, ([](T a) { return I::sub(0, a); })>;
  table["min." + type] = &binary<T, T, ([](T a, T b) { return std::min(a, b); })>;
  table["max." + type] = &binary<T, T, ([](T a, T b) { return std::max(a, b); })>;
  table["shr." + type] =
      &shift<T, ([](T a, u32 n) {
               return n < sizeof(T) * 8 ? static_cast<T>(a >> n) : static_cast<T>(a < 0 ? -1 : 0);
             })>;
  table["setp.lt." + type] = &compare<T, ([](T a, T b) { return a < b; })>;
  table["setp.le." + type] = &compare<T, ([](T a, T b) { return a <= b; })>;
  table["setp.gt." + type] = &compare<T, ([](T a, T b) { return a > b; })>;
  table["setp.ge." + type] = &compare<T, ([](T a, T b) { return a >= b; })>;
  table["setp.eq." + type] = &compare<T, ([](T a, T b) { return a == b; })>;
  table["setp.ne." + type] = &compare<T, ([](T a, T b) { return a != b; })>;
  table["selp." + type] = &select<T>;
  table["mov." + type] = &move<T>;
}

template <class T>
void add_bits(Table& table, const std::string& type) {
  table["and." + type] = &binary<T, T, ([](T a, T b) { return a & b; })>;
  table["or." + type] = &binary<T, T, ([](T a, T b) { return a | b; })>;
  table["xor." + type] = &binary<T, T, ([](T a, T b) { return a ^ b; })>;
  table["not." + type] = &unary<T, T, ([](T a) { return ~a; })>;
  table["shl." + type] = &shift<T, ([](T a, u32 n) { return n < sizeof(T) * 8 ? a << n : 0; })>;
  table["shr." + type] = &shift<T, ([](T a, u32 n) { return n < sizeof(T) * 8 ? a >> n : 0; })>;
  table["setp.eq." + type] = &compare<T, ([](T a, T b) { return a == b; })>;
  table["setp.ne." + type] = &compare<T, ([](T a, T b) { return a != b; })>;
  table["selp." + type] = &select<T>;
  table["mov." + type] = &move<T>;
}

template <class T>
void add_floats(Table& table, const std::string& type) {
  for (const char* rounding : {"", "rn."}) {
    table["add." + (rounding + type)] = &binary<T, T, ([](T a, T b) { return a + b; })>;
    table["sub." + (rounding + type)] = &binary<T, T, ([](T a, T b) { return a - b; })>;
    table["mul." + (rounding + type)] = &binary<T, T, ([](T a, T b) { return a * b; })>;
  }
  table["fma.rn." + type] = &ternary<T, T, ([](T a, T b, T c) { return std::fma(a, b, c); })>;
  for (const char* rounding : {"rn.", "approx."}) {
    table["div." + (rounding + type)] = &binary<T, T, ([](T a, T b) { return a / b; })>;
    table["rcp." + (rounding + type)] = &unary<T, T, ([](T a) { return T{1} / a; })>;
    table["sqrt." + (rounding + type)] = &unary<T, T, ([](T a) { return std::sqrt(a); })>;
  }
  table["neg." + type] = &unary<T, T, ([](T a) { return -a; })>;
  table["abs." + type] = &unary<T, T, ([](T a) { return std::fabs(a); })>;
  table["min." + type] = &binary<T, T, least<T>>;
  table["max." + type] = &binary<T, T, most<T>>;
  table["copysign." + type] = &binary<T, T, ([](T a, T b) { return std::copysign(b, a); })>;
  table["setp.lt." + type] = &compare<T, ([](T a, T b) { return a < b; })>;
  table["setp.le." + type] = &compare<T, ([](T a, T b) { return a <= b; })>;
  table["setp.gt." + type] = &compare<T, ([](T a, T b) { return a > b; })>;
  table["setp.ge." + type] = &compare<T, ([](T a, T b) { return a >= b; })>;
  table["setp.eq." + type] = &compare<T, ([](T a, T b) { return a == b; })>;
  table["setp.ltu." + type] = &compare<T, ([](T a, T b) { return !(a >= b); })>;
  table["setp.leu." + type] = &compare<T, ([](T a, T b) { return !(a > b); })>;
  table["setp.gtu." + type] = &compare<T, ([](T a, T b) { return !(a <= b); })>;
  table["setp.geu." + type] = &compare<T, ([](T a, T b) { return !(a < b); })>;
  table["setp.neu." + type] = &compare<T, ([](T a, T b) { return a != b; })>;
  table["setp.equ." + type] = &compare<T, ([](T a, T b) { return !(a < b || a > b); })>;
  table["setp.num." + type] = &compare<T, ([](T a, T b) { return a == a && b == b; })>;
  table["setp.nan." + type] = &compare<T, ([](T a, T b) { return a != a || b != b; })>;
  table["selp." + type] = &select<T>;
  table["mov." + type] = &move<T>;
}

template <class To, class From>
void add_widening(Table& table, const std::string& to, const std::string& from) {
  table["cvt." + to + "." + from] = &unary<To, From, ([](From a) { return static_cast<To>(a); })>;
}

template <class From>
void add_conversions(Table& table, const std::string& from) {
  add_widening<u16, From>(table, "u16", from);
  add_widening<u32, From>(table, "u32", from);
  add_widening<u64, From>(table, "u64", from);
  add_widening<s16, From>(table, "s16", from);
  add_widening<s32, From>(table, "s32", from);
  add_widening<s64, From>(table, "s64", from);
  add_widening<float, From>(table, "rn.f32", from);
  add_widening<double, From>(table, "rn.f64", from);
}

void add_special_functions(Table& table) {
  table["ex2.approx.f32"] = &unary<float, float, ([](float a) { return std::exp2(a); })>;
  table["ex2.approx.ftz.f32"] =
      &unary<float, float, ([](float a) { return flush(std::exp2(flush(a))); })>;
  table["lg2.approx.f32"] = &unary<float, float, ([](float a) { return std::log2(a); })>;
  table["rcp.approx.ftz.f32"] =
      &unary<float, float, ([](float a) { return flush(1.0F / flush(a)); })>;
  table["rsqrt.approx.f32"] = &unary<float, float, ([](float a) { return 1.0F / std::sqrt(a); })>;
  table["rsqrt.approx.ftz.f32"] =
      &unary<float, float, ([](float a) { return flush(1.0F / std::sqrt(flush(a))); })>;
  table["sin.approx.f32"] = &unary<float, float, ([](float a) { return std::sin(a); })>;
  table["cos.approx.f32"] = &unary<float, float, ([](float a) { return std::cos(a); })>;
  table["fma.rm.f32"] = &ternary<float, float, fused_down>;
  table["cvt.sat.f32.f32"] =
      &unary<float, float, ([](float a) { return a > 0.0F ? std::min(a, 1.0F) : 0.0F; })>;
  table["cvt.rni.f32.f32"] = &unary<float, float, ([](float a) { return std::nearbyint(a); })>;
  table["cvt.rzi.f32.f32"] = &unary<float, float, ([](float a) { return std::trunc(a); })>;
  table["cvt.rmi.f32.f32"] = &unary<float, float, ([](float a) { return std::floor(a); })>;
  table["cvt.rni.f64.f64"] = &unary<double, double, ([](double a) { return std::nearbyint(a); })>;
  table["cvt.rmi.f64.f64"] = &unary<double, double, ([](double a) { return std::floor(a); })>;
  table["cvt.rzi.s32.f32"] = &unary<s32, float, to_integer<s32, float>>;
  table["cvt.rzi.u32.f32"] = &unary<u32, float, to_integer<u32, float>>;
  table["cvt.rzi.s32.f64"] = &unary<s32, double, to_integer<s32, double>>;
  table["cvt.rzi.s64.f64"] = &unary<s64, double, to_integer<s64, double>>;
  table["cvt.rzi.u64.f64"] = &unary<u64, double, to_integer<u64, double>>;
  table["cvt.rni.s32.f64"] =
      &unary<s32, double, ([](double a) { return to_integer<s32>(std::nearbyint(a)); })>;
  table["cvt.rni.s64.f64"] =
      &unary<s64, double, ([](double a) { return to_integer<s64>(std::nearbyint(a)); })>;
  table["cvt.rni.s32.f32"] =
      &unary<s32, float, ([](float a) { return to_integer<s32>(std::nearbyint(a)); })>;
  table["cvt.rni.s64.f32"] =
      &unary<s64, float, ([](float a) { return to_integer<s64>(std::nearbyint(a)); })>;
  table["cvt.f64.f32"] = &unary<double, float, ([](float a) { return a; })>;
  table["cvt.rn.f32.f64"] = &unary<float, double, ([](double a) { return a; })>;
  table["cvt.rn.bf16.f32"] = &unary<u16, float, to_bf16>;
  table["cvt.rn.f16.f32"] = &unary<u16, float, to_half>;
  table["cvt.rn.bf16x2.f32"] = &pack_pair<to_bf16>;
  table["cvt.rn.f16x2.f32"] = &pack_pair<to_half>;
  table["cvt.f32.f16"] =
      &unary<float, u16, ([](u16 a) { return static_cast<float>(std::bit_cast<_Float16>(a)); })>;
  table["cvt.f32.bf16"] =
      &unary<float, u16, ([](u16 a) { return std::bit_cast<float>(static_cast<u32>(a) << 16); })>;
}

void add_bit_functions(Table& table) {
  table["popc.b32"] = &unary<u32, u32, ([](u32 a) { return std::popcount(a); })>;
  table["clz.b32"] = &unary<u32, u32, ([](u32 a) { return std::countl_zero(a); })>;
  table["brev.b32"] = &unary<u32, u32, ([](u32 a) {
                               u32 reversed = 0;
                               for (int bit = 0; bit < 32; ++bit) {
                                 reversed |= (a >> bit & 1) << (31 - bit);
                               }
                               return reversed;
                             })>;
  table["bfind.shiftamt.u32"] =
      &unary<u32, u32,
             ([](u32 a) { return a == 0 ? ~u32{0} : static_cast<u32>(std::countl_zero(a)); })>;
  table["bmsk.clamp.b32"] = &binary<u32, u32, ([](u32 at, u32 count) {
                                      const u64 field =
                                          count >= 32 ? ~u32{0} : (u64{1} << count) - 1;
                                      return at >= 32 ? 0 : static_cast<u32>(field << at);
                                    })>;
  table["min.NaN.f16x2"] = &binary<u32, u32, least_of_pairs>;
  table["bfi.b32"] = &insert_bits;
  table["prmt.b32"] = &ternary<u32, u32, permute>;
}

}  // namespace

void add_arithmetic(Table& table) {
  add_bits<u16>(table, "b16");
  add_bits<u32>(table, "b32");
  add_bits<u64>(table, "b64");
  add_integers<u16>(table, "u16");
  add_integers<u32>(table, "u32");
  add_integers<u64>(table, "u64");
  add_integers<s16>(table, "s16");
  add_integers<s32>(table, "s32");
  add_integers<s64>(table, "s64");
  add_floats<float>(table, "f32");
  add_floats<double>(table, "f64");
  add_conversions<u16>(table, "u16");
  add_conversions<u32>(table, "u32");
  add_conversions<u64>(table, "u64");
  add_conversions<s16>(table, "s16");
  add_conversions<s32>(table, "s32");
  add_conversions<s64>(table, "s64");
  add_special_functions(table);
  add_bit_functions(table);
  table["mul.wide.u16"] = &binary<u32, u16, ([](u16 a, u16 b) { return static_cast<u32>(a) * b; })>;
  table["mul.wide.u32"] = &binary<u64, u32, ([](u32 a, u32 b) { return static_cast<u64>(a) * b; })>;
  table["mul.wide.s32"] = &binary<s64, s32, ([](s32 a, s32 b) { return static_cast<s64>(a) * b; })>;
  table["mad.wide.u32"] =
      &ternary<u64, u32, ([](u32 a, u32 b, u64 c) { return static_cast<u64>(a) * b + c; })>;
  table["mad.wide.s32"] =
      &ternary<s64, s32, ([](s32 a, s32 b, s64 c) { return static_cast<s64>(a) * b + c; })>;
  table["mul.hi.u32"] =
      &binary<u32, u32, ([](u32 a, u32 b) { return static_cast<u64>(a) * b >> 32; })>;
  table["mul.hi.s32"] =
      &binary<s32, s32, ([](s32 a, s32 b) { return static_cast<s64>(a) * b >> 32; })>;
  table["mul.hi.u64"] =
      &binary<u64, u64, ([](u64 a, u64 b) {
                return static_cast<u64>(static_cast<unsigned __int128>(a) * b >> 64);
              })>;
  table["and.pred"] = &logic<([](Mask a, Mask b) { return a & b; })>;
  table["or.pred"] = &logic<([](Mask a, Mask b) { return a | b; })>;
  table["xor.pred"] = &logic<([](Mask a, Mask b) { return a ^ b; })>;
  table["not.pred"] = &logic<([](Mask a, Mask) { return ~a; })>;
  table["mov.pred"] = &move_predicate;
  table["mov.special"] = &read_special;
  for (const char* space : {"cvta.to.global.u64", "cvta.global.u64", "cvta.param.u64"}) {
    table[space] = &move<u64>;
  }
  table["cvta.shared.u64"] = &unary<u64, u64, ([](u64 a) { return a + kSharedWindow; })>;
  table["cvta.to.shared.u64"] = &unary<u64, u64, ([](u64 a) { return a - kSharedWindow; })>;
}

}  // namespace carope::ptx
