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

  Rotation rotation(const Way& way) const {
    Rotation rotation = AttentionCall::rotation(args.qkv, way.layout);
    if (way.rotated == Rotated::kByIncrements) {
      rotation.increments = increments;
    } else if (way.rotated == Rotated::kByGates) {
      rotation.logits = logits;
      rotation.exponent_start = way.exponent_start;
      rotation.phases = phases;
    }
    return rotation;
  }
  RotateAndAttendGradients gradients(const Way& way) const {
    return {.dlogits = way.rotated == Rotated::kByGates ? dlogits : Tensor{},
            .dbias = way.bias ? bias_gradient : Tensor{},
            .write = way.write};
  }

  /// Goes back, with results that were there before as the way has them.
  void go(const Way& way) {
    fill(args.dqkv, NAN);
    fill(dlogits, NAN);
    fill(bias_gradient, way.write == Write::kAccumulate ? kBefore : NAN);
    rotate_and_attend_backward(ctx, attention, seq, rotation(way), args, gradients(way));
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

/// Rotates the gradients of q and k back, on the CPU.
void rotate_back(const Call& cpu, const Way& way, std::vector<float>& dqkv) {
  if (way.rotated == Rotated::kByIncrements) {
    const Rotation gradients =
        cpu.AttentionCall::rotation(Tensor::of(dqkv, cpu.args.qkv.shape()), way.layout);
    rotate_backward(cpu.ctx, cpu.rotation(way), cpu.seq, {.dq = gradients.q, .dk = gradients.k});
  } else if (way.rotated == Rotated::kByGates) {
    const auto* phases = cpu.phases.data<std::uint16_t>();
    const double turn = -2.0 * std::numbers::pi;
    for_each_pair(cpu, way, [&](std::size_t pair, std::size_t at_x, std::size_t at_y) {
      const double angle = turn * phases[pair] / 65536.0;
      const auto x = static_cast<double>(dqkv[at_x]);
      const auto y = static_cast<double>(dqkv[at_y]);
      dqkv[at_x] = static_cast<float>(std::cos(angle) * x - std::sin(angle) * y);
      dqkv[at_y] = static_cast<float>(std::sin(angle) * x + std::cos(angle) * y);
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
    rotate_back(cpu, way, dqkv);
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
    gpu.go(way);
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
    gpu.go(way);
    for (const Tensor& result : {gpu.args.dqkv, gpu.dlogits, gpu.bias_gradient}) {
      found.push_back(read(result));
    }
  }
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(same_bits(found[i], found[i + 3])) << i;
  }

  gpu.go({});
  const auto through = read(gpu.args.dqkv);
  attention_backward(device, gpu.attention, gpu.seq, gpu.args);
  EXPECT_TRUE(same_bits(through, read(gpu.args.dqkv)));
}

INSTANTIATE_TEST_SUITE_P(Sizes, ThroughOnGpu, ThroughOnGpu::sizes(), ThroughOnGpu::name);

TEST(Through, NothingOnTheCpu) {
  Context ctx = Context::cpu(1);
  Call call(ctx, {1, 128, 1}, DType::kF32);
  for (const Way& way : all_ways()) {
    EXPECT_THAT(message_of<ShapeError>([&] { call.go(way); }), HasSubstr("no kernel"));
  }
  EXPECT_THAT(read(call.args.dqkv), testing::Each(testing::IsNan()));
}

TEST(Through, NoGradientsThatDoNotFit) {
  if (!has_gpu()) {
    GTEST_SKIP() << "no GPU is present";
  }
  if (!is_served(128)) {
    GTEST_SKIP() << "this GPU has no attention that rotates";
  }
  Context ctx = cuda_context();
  Call call(ctx, {2, 128, 3}, DType::kBF16);
  const Way way{.rotated = Rotated::kByGates};
  const auto said_with = [&](const auto& change) {
    RotateAndAttendGradients gradients = call.gradients(way);
    Rotation rotation = call.rotation(way);
    change(gradients, rotation);
    return message_of<ShapeError>([&] {
      rotate_and_attend_backward(ctx, call.attention, call.seq, rotation, call.args, gradients);
    });
  };
  EXPECT_THAT(said_with([](auto& g, auto&) {
                g.dlogits = g.dlogits.reshape({2, 384});
              }),
              HasSubstr("dlogits"));
  EXPECT_THAT(said_with([](auto& g, auto&) { g.dlogits = {}; }), HasSubstr("dlogits"));
  EXPECT_THAT(said_with([](auto& g, auto&) {
                g.dbias = g.dbias.reshape({3, 192});
              }),
              HasSubstr("the gradient of qkv's bias"));
  EXPECT_THAT(said_with([](auto&, auto& r) { r.phases = {}; }),
              HasSubstr("the phases that the forward pass made"));
}

}  // namespace
}  // namespace carope::test
