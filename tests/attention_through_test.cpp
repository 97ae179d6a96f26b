// Attention's backward pass that goes on through the rotation of its input and the bias: against
// the CPU engine, which takes those steps one by one in fp32, and against what it wrote itself.

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>

#include "support/errors.h"
#include "support/op_run.h"
#include "support/rotating_attention.h"

namespace carope::test {
namespace {

using testing::HasSubstr;

enum class Rotated { kNot, kByIncrements, kByGates };

struct Way {
  Rotated rotated = Rotated::kNot;
  RotaryLayout layout = RotaryLayout::kHalf;
  std::int64_t exponent_start = 0;
  bool bias = true;
  Write write = Write::kOverwrite;

  std::string name() const {
    return fmt::format("rotated {} layout {} exponent_start {} bias {} write {}",
                       static_cast<int>(rotated), static_cast<int>(layout), exponent_start, bias,
                       static_cast<int>(write));
  }
};

std::vector<Way> all_ways() {
  std::vector<Way> ways = {{}, {.write = Write::kAccumulate}};
  for (const RotaryLayout layout : {RotaryLayout::kHalf, RotaryLayout::kInterleaved}) {
    ways.push_back({.rotated = Rotated::kByIncrements, .layout = layout});
    ways.push_back({.rotated = Rotated::kByIncrements, .layout = layout, .bias = false});
    ways.push_back({.rotated = Rotated::kByGates, .layout = layout});
    ways.push_back({.rotated = Rotated::kByGates,
                    .layout = layout,
                    .exponent_start = 2,
                    .write = Write::kAccumulate});
  }
  return ways;
}

/// What is to be written starts as NaN.
struct Call : AttentionCall {
  Call(Context& context, const AttentionSize& size, DType type)
      : AttentionCall(context, size),
        args{.qkv = make_rows(3 * kDim, type),
             .out = make_rows(kDim, type),
             .logsumexp = make({size.batch, size.heads, size.length}, DType::kF32),
             .dout = make_rows(kDim, type),
             .dqkv = make_rows(3 * kDim, type)},
        logits(make_rows(1, DType::kF32)),
        dlogits(make_rows(1, DType::kF32)),
        bias_gradient(make({3 * size.heads * kDim}, DType::kF32)),
        phases(make_phases()) {
    const Philox random(5, 1);
    std::vector<std::uint16_t> phase(static_cast<std::size_t>(phases.size()));
    for (std::size_t i = 0; i < phase.size(); ++i) {
      phase[i] = static_cast<std::uint16_t>(random.below(1U << 16, i));
    }
    copy_from_host(phases.raw(), phase.data(), phases.bytes(), ctx.device());
    auto gates = random_values(logits.size(), 3);  // with a few that are far out
    for (std::size_t i = 0; i < gates.size(); ++i) {
      gates[i] = i % 97 == 50 ? 12.0F : i % 89 == 30 ? -12.0F : gates[i] - 0.9F;
    }
    write(gates, logits);
    write(random_values(args.qkv.size(), 1), args.qkv);
    write(random_values(args.dout.size(), 2), args.dout);
  }

  AttentionInput input(const Way& way) const {
    const bool gates = way.rotated == Rotated::kByGates;
    return {.layout = way.layout,
            .increments = way.rotated == Rotated::kByIncrements ? increments : Tensor{},
            .logits = gates ? logits : Tensor{},
            .exponent_start = way.exponent_start,
            .phases = gates ? phases : Tensor{},
            .dlogits = gates ? dlogits : Tensor{},
            .bias_gradient = way.bias ? bias_gradient : Tensor{},
            .write = way.write};
  }

  /// Goes through, with results that were there before as the way has them.
  bool go(const Way& way) {
    fill(args.dqkv, NAN);
    fill(dlogits, NAN);
    fill(bias_gradient, way.write == Write::kAccumulate ? kBefore : NAN);
    return attention_backward_through(ctx, attention, seq, args, input(way));
  }

  static void fill(const Tensor& tensor, float value) {
    write(std::vector<float>(static_cast<std::size_t>(tensor.size()), value), tensor);
  }

  static constexpr float kBefore = 3.0F;

  AttentionBackward args;
  Tensor logits, dlogits, bias_gradient, phases;
};

/// Calls visit(number of the pair in [B, T, H, P], where its elements are in qkv) for q and k.
template <class Visit>
void for_each_pair(const Call& cpu, const Way& way, const Visit& visit) {
  const std::int64_t heads = cpu.attention.heads;
  const bool half = way.layout == RotaryLayout::kHalf;
  for (std::int64_t pair = 0; pair < cpu.phases.size(); ++pair) {
    const std::int64_t p = pair % kPairs;
    const std::int64_t head = pair / kPairs % heads;
    const std::int64_t token = pair / kPairs / heads;
    for (const std::int64_t part : {0, 1}) {
      const std::int64_t first = (token * 3 + part) * heads * kDim + head * kDim;
      visit(static_cast<std::size_t>(pair), static_cast<std::size_t>(first + (half ? p : 2 * p)),
            static_cast<std::size_t>(first + (half ? p + kPairs : 2 * p + 1)));
    }
  }
}

/// Rotates q and k, or their gradients back, on the CPU.
void rotate(const Call& cpu, const Way& way, Direction direction, std::vector<float>& qkv) {
  if (way.rotated == Rotated::kByIncrements) {
    rotary(cpu.ctx,
           {.heads = cpu.attention.heads, .layout = way.layout, .increments = cpu.increments},
           cpu.seq, direction, Tensor::of(qkv, cpu.args.qkv.shape()));
  } else if (way.rotated == Rotated::kByGates) {
    const auto* phases = cpu.phases.data<std::uint16_t>();
    const double turn = (direction == Direction::kForward ? 2.0 : -2.0) * std::numbers::pi;
    for_each_pair(cpu, way, [&](std::size_t pair, std::size_t at_x, std::size_t at_y) {
      const double angle = turn * phases[pair] / 65536.0;
      const auto x = static_cast<double>(qkv[at_x]);
      const auto y = static_cast<double>(qkv[at_y]);
      qkv[at_x] = static_cast<float>(std::cos(angle) * x - std::sin(angle) * y);
      qkv[at_y] = static_cast<float>(std::sin(angle) * x + std::cos(angle) * y);
    });
  }
}

/// The same step by step on the CPU, from dqkv as attention leaves it.
struct Expected {
  Expected(Call& cpu, const Way& way, const std::vector<float>& rotated_gradients)
      : dqkv(rotated_gradients) {
    if (way.rotated == Rotated::kByGates) {
      dlogits = gate_gradients(cpu, way);
    }
    rotate(cpu, way, Direction::kBackward, dqkv);
    bias_gradient = sum_columns(dqkv, way, cpu.args.dqkv.cols());
  }

  static std::vector<double> sum_columns(const std::vector<float>& rows, const Way& way,
                                         std::int64_t columns) {
    const auto width = static_cast<std::size_t>(columns);
    std::vector<double> sums(
        width, way.write == Write::kAccumulate ? static_cast<double>(Call::kBefore) : 0.0);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      sums[i % width] += static_cast<double>(rows[i]);
    }
    return sums;
  }

  std::vector<float> dqkv;
  std::vector<double> dlogits;
  std::vector<double> bias_gradient;

 private:
  /// dz(t) = -f σ(z) Σ_p e f^e G_p(t), where G_p(t) sums the phases' gradients from t on.
  std::vector<double> gate_gradients(const Call& cpu, const Way& way) const {
    const float* qkv = cpu.args.qkv.f32();
    std::vector<double> sums(static_cast<std::size_t>(cpu.phases.size()));
    for_each_pair(cpu, way, [&](std::size_t pair, std::size_t x, std::size_t y) {
      sums[pair] += static_cast<double>(qkv[x]) * static_cast<double>(dqkv[y]) -
                    static_cast<double>(qkv[y]) * static_cast<double>(dqkv[x]);
    });
    const auto step = static_cast<std::size_t>(cpu.attention.heads * kPairs);  // to the next token
    for (std::size_t i = sums.size() - step; i-- > 0;) {
      const bool last = i / step % static_cast<std::size_t>(cpu.seq.length) ==
                        static_cast<std::size_t>(cpu.seq.length) - 1;
      sums[i] += last ? 0.0 : sums[i + step];
    }
    std::vector<double> gradients;
    for (std::size_t gate = 0; gate < static_cast<std::size_t>(cpu.logits.size()); ++gate) {
      const double z = cpu.logits.f32()[gate];
      const double f = 1.0 / (std::log1p(std::exp(z)) + 1.0);
      double sum = 0.0;
      for (std::size_t p = 0; p < kPairs; ++p) {
        const auto e = static_cast<double>(p) + static_cast<double>(way.exponent_start);
        sum += e * std::pow(f, e) * sums[gate * kPairs + p];
      }
      gradients.push_back(-f / (1.0 + std::exp(-z)) * sum);
    }
    return gradients;
  }
};

class ThroughOnGpu : public RotatingAttentionTest {
 protected:
  static Call call(Context& ctx, DType type) { return {ctx, GetParam(), type}; }
};

TEST_P(ThroughOnGpu, GivesWhatTheCpuGivesStepByStep) {
  Context host = Context::cpu(2);
  Call cpu = call(host, DType::kF32);
  attention(host, cpu.attention, cpu.seq, cpu.args.qkv, cpu.args.out, cpu.args.logsumexp);
  attention_backward(host, cpu.attention, cpu.seq, cpu.args);
  const std::vector<float> gradients = read(cpu.args.dqkv);

  Context device = cuda_context();
  Call gpu = call(device, DType::kBF16);
  write(read(cpu.args.out), gpu.args.out);
  write(read(cpu.args.logsumexp), gpu.args.logsumexp);
  const double tolerated = tolerance(DType::kBF16).gradient;
  for (const Way& way : all_ways()) {
    SCOPED_TRACE(way.name());
    const Expected expected(cpu, way, gradients);
    ASSERT_TRUE(gpu.go(way));
    const auto dqkv = read(gpu.args.dqkv);
    EXPECT_LE(error_of(dqkv, expected.dqkv), tolerated);
    if (way.rotated == Rotated::kByGates) {
      EXPECT_LE(error_of(read(gpu.dlogits), expected.dlogits), tolerated);
    }
    if (way.bias) {
      const auto sums = read(gpu.bias_gradient);
      EXPECT_LE(error_of(sums, expected.bias_gradient), tolerated);
      EXPECT_LE(error_of(sums, Expected::sum_columns(dqkv, way, gpu.args.dqkv.cols())),
                unrounded_tolerance().gradient);
    }
  }
}

TEST_P(ThroughOnGpu, GivesTheSameBitsAgainAndThoseOfAttentionAlone) {
  Context device = cuda_context();
  Call gpu = call(device, DType::kBF16);
  attention(device, gpu.attention, gpu.seq, gpu.args.qkv, gpu.args.out, gpu.args.logsumexp);
  const Way way{.rotated = Rotated::kByGates};
  std::vector<std::vector<float>> found;
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(gpu.go(way));
    for (const Tensor& result : {gpu.args.dqkv, gpu.dlogits, gpu.bias_gradient}) {
      found.push_back(read(result));
    }
  }
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(same_bits(found[i], found[i + 3])) << i;
  }

  ASSERT_TRUE(gpu.go({}));
  const auto through = read(gpu.args.dqkv);
  attention_backward(device, gpu.attention, gpu.seq, gpu.args);
  EXPECT_TRUE(same_bits(through, read(gpu.args.dqkv)));
}

INSTANTIATE_TEST_SUITE_P(Sizes, ThroughOnGpu, ThroughOnGpu::sizes(), ThroughOnGpu::name);

TEST(Through, LeavesToOthersWhatItDoesNotServe) {
  if (!has_gpu()) {
    GTEST_SKIP() << "no GPU is present";
  }
  const Device gpu{DeviceKind::kCuda, 0};
  for (const std::int64_t length : {0, 64, 192, 500, 640, 1024}) {
    EXPECT_FALSE(attention_goes_through(gpu, DType::kBF16, kDim, length)) << length;
  }
  EXPECT_FALSE(attention_goes_through(gpu, DType::kBF16, 32, 512));
  EXPECT_FALSE(attention_goes_through(gpu, DType::kBF16, 128, 512));
  EXPECT_FALSE(attention_goes_through(gpu, DType::kF32, kDim, 512));

  using Use = AttentionKernels::Use;
  for (const auto& [length, type, use] : {std::tuple(128, DType::kF32, Use::kOwn),
                                          {192, DType::kBF16, Use::kOwn},
                                          {128, DType::kBF16, Use::kCudnn}}) {
    Context ctx = cuda_context(true, use);
    Call call(ctx, {1, length, 1}, type);
    EXPECT_FALSE(call.go({}));
    for (const Tensor& result : {call.args.dqkv, call.bias_gradient}) {
      EXPECT_THAT(read(result), testing::Each(testing::IsNan())) << "something was done";
    }
  }
}

TEST(Through, IsLeftToOthersOnTheCpu) {
  Context ctx = Context::cpu(1);
  Call call(ctx, {1, 128, 1}, DType::kF32);
  EXPECT_FALSE(attention_goes_through({}, DType::kF32, kDim, 128));
  EXPECT_FALSE(attention_goes_through({}, DType::kBF16, kDim, 128));
  for (const Way& way : all_ways()) {
    EXPECT_FALSE(call.go(way)) << way.name();
  }
  EXPECT_THAT(read(call.args.dqkv), testing::Each(testing::IsNan()));
}

TEST(Through, RefusesAnInputThatDoesNotFit) {
  Context ctx = Context::cpu(1);
  Call call(ctx, {2, 128, 3}, DType::kF32);
  const auto said = [&](const AttentionInput& input) {
    return message_of<ShapeError>(
        [&] { attention_backward_through(ctx, call.attention, call.seq, call.args, input); });
  };
  const AttentionInput gates = call.input({.rotated = Rotated::kByGates});
  EXPECT_EQ(said(gates), "(nothing thrown)");
  const auto said_with = [&](const auto& change) {
    AttentionInput input = gates;
    change(input);
    return said(input);
  };
  EXPECT_THAT(said({.increments = call.increments.reshape({2, 16})}),
              HasSubstr("the increments of attention's input"));
  EXPECT_THAT(said_with([](auto& input) {
                input.phases = input.phases.reshape({2, 128, 32, 3});
              }),
              HasSubstr("the phases of attention's input"));
  EXPECT_THAT(said_with([](auto& input) {
                input.logits = input.logits.reshape({2, 384});
              }),
              HasSubstr("the gate logits of attention's input"));
  EXPECT_THAT(said_with([](auto& input) {
                input.dlogits = input.dlogits.reshape({2, 384});
              }),
              HasSubstr("dlogits"));
  EXPECT_THAT(said({.bias_gradient = call.bias_gradient.reshape({3, 192})}),
              HasSubstr("the gradient of qkv's bias"));
  EXPECT_THAT(said_with([&](auto& input) { input.increments = call.increments; }),
              HasSubstr("give one of them"));
  EXPECT_THAT(said_with([](auto& input) { input.phases = {}; }),
              HasSubstr("come from gate logits: give both or none"));
  EXPECT_THAT(said_with([](auto& input) { input.dlogits = {}; }),
              HasSubstr("the gradient of the gate logits of attention's input: give both or none"));
}

}  // namespace
}  // namespace carope::test
