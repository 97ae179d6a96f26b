// Attention that rotates its input itself: against the CPU engine, which does one after the other
// in fp32, and against what it gave before.

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>

#include "ops/rotation.h"
#include "support/errors.h"
#include "support/op_run.h"
#include "support/rotating_attention.h"

namespace carope::test {
namespace {

using testing::HasSubstr;

enum class By { kNothing, kIncrements, kGates };

struct Way {
  By by = By::kNothing;
  RotaryLayout layout = RotaryLayout::kHalf;
  std::int64_t exponent_start = 0;

  std::string name() const {
    return fmt::format("by {} layout {} exponent {}", static_cast<int>(by),
                       static_cast<int>(layout), exponent_start);
  }
};

std::vector<Way> all_ways() {
  std::vector<Way> ways = {{}};
  for (const RotaryLayout layout : {RotaryLayout::kHalf, RotaryLayout::kInterleaved}) {
    ways.push_back({.by = By::kIncrements, .layout = layout});
    for (const std::int64_t exponent_start : {0, 1, 3}) {
      ways.push_back({.by = By::kGates, .layout = layout, .exponent_start = exponent_start});
    }
  }
  return ways;
}

/// What is to be written starts as NaN, or as ones.
struct Call : AttentionCall {
  Call(Context& context, const AttentionSize& size, DType type)
      : AttentionCall(context, size),
        qkv(make_rows(3 * kDim, type)),
        out(make_rows(kDim, type)),
        logsumexp(make({size.batch, size.heads, size.length}, DType::kF32)),
        logits(make_rows(1, DType::kF32)),
        phases(make_phases()) {
    const std::vector<std::uint16_t> ones(static_cast<std::size_t>(phases.size()), 1);
    copy_from_host(phases.raw(), ones.data(), phases.bytes(), ctx.device());
    write(random_values(qkv.size(), 1), qkv);
    write(random_logits(logits.size()), logits);
    for (const Tensor& result : {out, logsumexp}) {
      write(std::vector<float>(static_cast<std::size_t>(result.size()), NAN), result);
    }
  }

  Rotation rotation(const Way& way) const {
    Rotation rotation = AttentionCall::rotation(qkv, way.layout);
    if (way.by == By::kIncrements) {
      rotation.increments = increments;
    } else if (way.by == By::kGates) {
      rotation.logits = logits;
      rotation.exponent_start = way.exponent_start;
      rotation.phases = phases;
    }
    return rotation;
  }

  void attend(const Way& way) { attend(rotation(way)); }
  void attend(const Rotation& rotation) {
    rotate_and_attend(ctx, attention, seq, rotation, qkv, out, logsumexp);
  }

  /// The operation that rotates, alone.
  void rotate(const Way& way) {
    Rotation turns = rotation(way);
    const TensorSpec carry = turns.carry_spec(seq);
    turns.carry = make(carry.shape, carry.dtype);
    carope::rotate(ctx, turns, seq);
  }

  std::vector<std::uint16_t> read_phases() const {
    std::vector<std::uint16_t> values(static_cast<std::size_t>(phases.size()));
    copy_to_host(values.data(), phases.raw(), phases.bytes(), ctx.device());
    return values;
  }

  Tensor qkv, out, logsumexp, logits, phases;

 private:
  /// Around RoPE's, and some far away.
  static std::vector<float> random_logits(std::int64_t size) {
    const Philox random(6, 1);
    std::vector<float> logits;
    for (std::int64_t i = 0; i < size; ++i) {
      logits.push_back(static_cast<float>((i % 11 == 0 ? 20.0 : 1.0) * random.normal(i) - 0.93));
    }
    return logits;
  }
};

class RotatesOnGpu : public RotatingAttentionTest {
 protected:
  static Call call(Context& ctx, DType type) { return {ctx, GetParam(), type}; }
};

TEST_P(RotatesOnGpu, AndAttendsAsTheCpuDoesStepByStep) {
  Context host = Context::cpu(2);
  Context device = cuda_context();
  for (const Way& way : all_ways()) {
    SCOPED_TRACE(way.name());
    Call gpu = call(device, DType::kBF16);
    gpu.attend(way);
    const auto stored = read(gpu.qkv);

    Call cpu = call(host, DType::kF32);
    cpu.rotate(way);
    EXPECT_TRUE(gpu.read_phases() == cpu.read_phases());
    const auto rotated = read(cpu.qkv);
    EXPECT_LE(error_of(stored, rotated), tolerance(DType::kBF16).forward);
    if (way.by == By::kNothing) {
      EXPECT_TRUE(same_bits(stored, rotated));
    }
    write(stored, cpu.qkv);
    attention(host, cpu.attention, cpu.seq, cpu.qkv, cpu.out, cpu.logsumexp);
    EXPECT_LE(error_of(read(gpu.out), read(cpu.out)), tolerance(DType::kBF16).forward);
    EXPECT_LE(error_of(read(gpu.logsumexp), read(cpu.logsumexp)), unrounded_tolerance().forward);
  }
}

/// The largest score then grows by so much from one tile of keys to the next that what was summed
/// before it has to shrink.
TEST_P(RotatesOnGpu, AndAttendsWithASharpSoftmax) {
  constexpr float kSharpness = 4.0F;
  Context host = Context::cpu(2);
  Context device = cuda_context();
  Call cpu = call(host, DType::kF32);
  Call gpu = call(device, DType::kBF16);
  auto qkv = read(gpu.qkv);
  std::transform(qkv.begin(), qkv.end(), qkv.begin(), [](float x) { return x * kSharpness; });
  write(qkv, cpu.qkv);
  write(qkv, gpu.qkv);
  gpu.attend(Way{});
  attention(host, cpu.attention, cpu.seq, cpu.qkv, cpu.out, cpu.logsumexp);
  EXPECT_LE(error_of(read(gpu.out), read(cpu.out)), tolerance(DType::kBF16).forward);
  EXPECT_LE(error_of(read(gpu.logsumexp), read(cpu.logsumexp)), unrounded_tolerance().forward);
}

TEST_P(RotatesOnGpu, AndAttendsToTheSameBitsAgain) {
  Context device = cuda_context();
  std::vector<std::vector<float>> found;
  std::vector<std::vector<std::uint16_t>> phases;
  for (int i = 0; i < 2; ++i) {
    Call gpu = call(device, DType::kBF16);
    gpu.attend({.by = By::kGates});
    for (const Tensor& result : {gpu.qkv, gpu.out, gpu.logsumexp}) {
      found.push_back(read(result));
    }
    phases.push_back(gpu.read_phases());
  }
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(same_bits(found[i], found[i + 3])) << i;
  }
  EXPECT_TRUE(phases[0] == phases[1]);
}

TEST_P(RotatesOnGpu, AndPassesOnANanInAQuery) {
  Context device = cuda_context();
  Call gpu = call(device, DType::kBF16);
  auto qkv = read(gpu.qkv);
  qkv[static_cast<std::size_t>(70 * gpu.qkv.cols())] = NAN;
  write(qkv, gpu.qkv);
  gpu.attend({.by = By::kGates});
  const auto out = read(gpu.out);
  const auto first = static_cast<std::size_t>(70 * gpu.out.cols());
  for (std::size_t i = 0; i < out.size(); ++i) {
    ASSERT_EQ(std::isnan(out[i]), i >= first && i < first + kDim) << i;
  }
}

/// By one element of that token's query: phases are finite, those after it too.
TEST_P(RotatesOnGpu, AndPassesOnANanOfAGate) {
  Context host = Context::cpu(2);
  Context device = cuda_context();
  for (const RotaryLayout layout : {RotaryLayout::kHalf, RotaryLayout::kInterleaved}) {
    for (const std::int64_t token : {0, 37, 70, 127}) {
      SCOPED_TRACE(token);
      const Way way{.by = By::kGates, .layout = layout};
      Call gpu = call(device, DType::kBF16);
      Call cpu = call(host, DType::kF32);
      const auto gate = static_cast<std::size_t>((token + 1) * gpu.attention.heads - 1);
      auto logits = read(gpu.logits);
      logits[gate] = NAN;
      write(logits, gpu.logits);
      write(logits, cpu.logits);
      gpu.attend(way);
      cpu.rotate(way);
      EXPECT_TRUE(gpu.read_phases() == cpu.read_phases());
      const auto stored = read(gpu.qkv);
      const auto rotated = read(cpu.qkv);
      for (std::size_t i = 0; i < stored.size(); ++i) {
        ASSERT_EQ(std::isnan(stored[i]), std::isnan(rotated[i])) << i;
      }
      const auto out = read(gpu.out);
      for (std::size_t i = 0; i < out.size(); ++i) {
        ASSERT_EQ(std::isnan(out[i]), i / kDim == gate) << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, RotatesOnGpu, RotatesOnGpu::sizes(), RotatesOnGpu::name);

/// Nothing reads the phases of a pass that no backward pass follows.
TEST_P(RotatesOnGpu, AndAttendsWithoutKeepingPhases) {
  Context device = cuda_context();
  Call kept = call(device, DType::kBF16);
  Call other = call(device, DType::kBF16);
  const Way way{.by = By::kGates};
  kept.attend(way);
  Rotation rotation = other.rotation(way);
  rotation.phases = {};
  other.attend(rotation);
  EXPECT_TRUE(same_bits(read(other.qkv), read(kept.qkv)));
  EXPECT_TRUE(same_bits(read(other.out), read(kept.out)));
  EXPECT_THAT(other.read_phases(), testing::Each(1)) << "something was written";
}

TEST(Rotates, NotWhatItDoesNotServe) {
  if (!has_gpu()) {
    GTEST_SKIP() << "no GPU is present";
  }
  Context ctx = cuda_context();
  for (const auto& [length, type] :
       {std::pair(128, DType::kF32), {192, DType::kBF16}, {640, DType::kBF16}}) {
    EXPECT_FALSE(is_served(length, type)) << length;
    Call call(ctx, {1, length, 1}, type);
    EXPECT_THAT(message_of<ShapeError>([&] { call.attend(Way{}); }), HasSubstr("no kernel"));
    for (const Tensor& result : {call.out, call.logsumexp}) {
      EXPECT_THAT(read(result), testing::Each(testing::IsNan())) << "something was done";
    }
  }
  for (const std::int64_t length : {0, 64, 192, 500, 640, 1024}) {
    EXPECT_FALSE(is_served(length)) << length;
  }
  for (const std::int64_t dim : {32, 128}) {
    EXPECT_FALSE(is_served(512, DType::kBF16, dim));
  }
  EXPECT_FALSE(is_served(512, DType::kBF16, kDim, true));
  EXPECT_FALSE(is_served(512, DType::kBF16, kDim, false, true));
}

TEST(Rotates, NotOnTheCpu) {
  Context ctx = Context::cpu(1);
  Call call(ctx, {1, 128, 1}, DType::kF32);
  const auto before = read(call.qkv);
  for (const Way& way : all_ways()) {
    EXPECT_THAT(message_of<ShapeError>([&] { call.attend(way); }), HasSubstr("no kernel"));
  }
  EXPECT_TRUE(same_bits(read(call.qkv), before));
  EXPECT_THAT(read(call.out), testing::Each(testing::IsNan()));
}

TEST(Rotates, NoRotationThatDoesNotFit) {
  Context ctx = Context::cpu(1);
  Call call(ctx, {2, 128, 3}, DType::kF32);
  const auto said_with = [&](By by, const auto& change) {
    Rotation rotation = call.rotation({.by = by});
    change(rotation);
    return message_of<ShapeError>([&] { call.attend(rotation); });
  };
  EXPECT_THAT(said_with(By::kIncrements,
                        [](auto& r) {
                          r.increments = r.increments.reshape({2, 16});
                        }),
              HasSubstr("the increments of a rotation"));
  EXPECT_THAT(said_with(By::kGates,
                        [](auto& r) {
                          r.logits = r.logits.reshape({2, 3, 128});
                        }),
              HasSubstr("the gate logits"));
  EXPECT_THAT(said_with(By::kGates,
                        [](auto& r) {
                          r.phases = r.phases.reshape({2, 128, 32, 3});
                        }),
              HasSubstr("the phases"));
  EXPECT_THAT(said_with(By::kGates, [&](auto& r) { r.increments = call.increments; }),
              HasSubstr("give one of them"));
  EXPECT_THAT(said_with(By::kGates, [](auto& r) { r.exponent_start = -1; }),
              HasSubstr("exponent_start = -1"));
  EXPECT_THAT(said_with(By::kIncrements, [](auto& r) { r.pairs = 33; }),
              HasSubstr("33 rotary pairs are not possible in a head of 64 channels"));
  EXPECT_THAT(said_with(By::kIncrements, [](auto& r) { r.k = r.q; }),
              HasSubstr("must be that of qkv's q and k"));
}

}  // namespace
}  // namespace carope::test
