// The phase: exact whatever way a sequence is cut, accurate over a million tokens, equal to RoPE's
// at the start; and the identities that follow from attention seeing phase differences only.
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "core/random.h"
#include "ops/attention.h"
#include "ops/rotation.h"
#include "support/compare.h"

namespace carope::test {
namespace {

constexpr long double kRadiansPerUnit = 2.0L * std::numbers::pi_v<long double> / 0x1p32L;

/// How a call is made, besides its size.
struct Gates {
  std::int64_t heads;
  std::int64_t chunk = 512;
};

/// A gated rotation with its own memory. q, k and v are random, as is a gradient of them.
class Call {
 public:
  Call(const Gates& gates, std::int64_t batch, std::int64_t length, std::int64_t pairs)
      : op(gates),
        seq{.batch = batch, .length = length},
        logits(static_cast<std::size_t>(batch * length * gates.heads)),
        qkv(static_cast<std::size_t>(batch * length * gates.heads * 6 * pairs)),
        dqkv(qkv.size()),
        dlogits(logits.size()),
        carry(static_cast<std::size_t>(batch * chunks() * gates.heads * pairs)),
        state(static_cast<std::size_t>(batch * gates.heads * pairs)),
        pairs_(pairs) {
    const Philox random(7, 0);
    for (std::size_t i = 0; i < qkv.size(); ++i) {
      qkv[i] = static_cast<float>(random.normal(i));
      dqkv[i] = static_cast<float>(random.normal(qkv.size() + i));
    }
  }

  void run(Context& ctx) { rotate(ctx, rotation(), seq); }
  /// The same, with each token's phases [B, T, H, P].
  std::vector<std::uint16_t> run_for_phases(Context& ctx) {
    std::vector<std::uint16_t> phases(logits.size() * static_cast<std::size_t>(pairs_));
    Rotation turns = rotation();
    turns.phases = Tensor::of(phases, {seq.batch, seq.length, op.heads, pairs_});
    rotate(ctx, turns, seq);
    return phases;
  }
  void run_backward(Context& ctx) {
    const QkvHeads gradients = split_qkv(rows(dqkv), seq, op.heads, op.heads);
    rotate_backward(ctx, rotation(), seq,
                    {.dq = gradients.q, .dk = gradients.k, .dlogits = this->gates(dlogits)});
  }
  Tensor rows(std::vector<float>& values) const {
    return Tensor::of(values, {seq.tokens(), op.heads * 6 * pairs_});
  }
  Tensor gates(std::vector<float>& values) const {
    return Tensor::of(values, {seq.batch, seq.length, op.heads});
  }

  Gates op;
  Sequence seq;
  std::vector<float> logits, qkv, dqkv, dlogits;
  std::vector<std::uint32_t> carry, state;

 private:
  std::int64_t chunks() const { return (seq.length + op.chunk - 1) / op.chunk; }
  Rotation rotation() {
    const QkvHeads parts = split_qkv(rows(qkv), seq, op.heads, op.heads);
    return {.q = parts.q,
            .k = parts.k,
            .pairs = pairs_,
            .logits = gates(logits),
            .chunk = op.chunk,
            .carry = Tensor::of(carry, {seq.batch, chunks(), op.heads, pairs_}),
            .state = Tensor::of(state, {seq.batch, op.heads, pairs_})};
  }

  std::int64_t pairs_;
};

void fill_random_logits(std::vector<float>& logits, double centre, double deviation) {
  const Philox random(11, 3);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    logits[i] = static_cast<float>(centre + deviation * random.normal(i));
  }
}

/// Distance of two angles on the circle.
long double circular_distance(long double a, long double b) {
  return std::fabs(std::remainder(a - b, 2.0L * std::numbers::pi_v<long double>));
}

TEST(Phase, DoesNotDependOnChunksOrThreads) {
  constexpr std::int64_t kLength = 120;
  constexpr std::int64_t kPairs = 12;
  std::vector<std::int32_t> starts;
  for (std::int32_t b = 0; b < 2; ++b) {
    for (std::int32_t t = 0; t < kLength; ++t) {
      starts.push_back(b == 0 || t < 15 ? 0 : (t < 60 ? 15 : 60));  // 15 and 60 are ends of chunks
    }
  }
  for (const bool packed : {false, true}) {
    const auto run = [&](std::int64_t chunks, int threads) {
      Call call({.heads = 3, .chunk = (kLength + chunks - 1) / chunks}, 2, kLength, kPairs);
      fill_random_logits(call.logits, -0.9, 1.0);
      if (packed) {
        call.seq.document_start = Tensor::of(starts, {2, kLength});
      }
      Context ctx = Context::cpu(threads);
      call.run(ctx);
      call.run_backward(ctx);
      return call;
    };
    const Call whole = run(1, 1);
    for (const std::int64_t chunks : {1, 2, 3, 8}) {
      for (const int threads : {1, 2, 3, 8}) {
        const Call cut = run(chunks, threads);
        EXPECT_EQ(cut.qkv, whole.qkv) << chunks << " chunks, " << threads << " threads";
        EXPECT_EQ(cut.state, whole.state);
        EXPECT_EQ(cut.dqkv, whole.dqkv);
        EXPECT_LT((relative_error<float, float>(cut.dlogits, whole.dlogits)), 1e-6);
        EXPECT_EQ(cut.dlogits, run(chunks, 1).dlogits);
      }
    }
  }
}

TEST(Phase, OneTokenAtATimeEqualsTheWholeSequence) {
  constexpr std::int64_t kLength = 300;
  constexpr std::int64_t kPairs = 16;
  Context ctx = Context::cpu(2);
  Call whole({.heads = 3, .chunk = 64}, 1, kLength, kPairs);
  fill_random_logits(whole.logits, -0.9, 1.0);
  Call piece({.heads = 3}, 1, 1, kPairs);
  const std::vector<float> unrotated = whole.qkv;
  std::vector<float> rotated;
  for (std::int64_t t = 0; t < kLength; ++t) {
    std::copy_n(whole.logits.begin() + t * 3, 3, piece.logits.begin());
    std::copy_n(unrotated.begin() + t * static_cast<std::int64_t>(piece.qkv.size()),
                piece.qkv.size(), piece.qkv.begin());
    piece.run(ctx);
    rotated.insert(rotated.end(), piece.qkv.begin(), piece.qkv.end());
  }
  whole.run(ctx);
  EXPECT_EQ(rotated, whole.qkv);
  EXPECT_EQ(piece.state, whole.state);
}

TEST(Phase, IsHandedOutRoundedToSixteenBits) {
  constexpr std::int64_t kHeads = 3;
  constexpr std::int64_t kPairs = 5;
  Context ctx = Context::cpu(2);
  for (const std::int64_t length : {1, 7, 128, 513}) {
    // With chunks of one token the carries are every token's phase but the last one's.
    Call exact({.heads = kHeads, .chunk = 1}, 1, length, kPairs);
    Call call({.heads = kHeads, .chunk = 100}, 1, length, kPairs);
    fill_random_logits(exact.logits, -0.9, 1.0);
    call.logits = exact.logits;
    // Pair 0 turns by a radian: it ends the first token just below a whole turn.
    const auto radian = static_cast<std::uint32_t>(std::lround(kTurnsPerRadian));
    exact.state[0] = call.state[0] = 0xFFFFFFFFU - radian;
    exact.run(ctx);
    const std::vector<std::uint16_t> phases = call.run_for_phases(ctx);
    exact.carry.insert(exact.carry.end(), exact.state.begin(), exact.state.end());
    EXPECT_EQ(exact.carry[kHeads * kPairs], 0xFFFFFFFFU);
    EXPECT_EQ(phases[0], 0);
    for (std::size_t i = 0; i < phases.size(); ++i) {
      const double turns = exact.carry[i + kHeads * kPairs] * 0x1p-16;
      ASSERT_EQ(phases[i], static_cast<std::uint32_t>(std::floor(turns + 0.5)) % 0x10000U)
          << "of " << length << " tokens, entry " << i;
    }
  }
}

struct AccuracyCase {
  const char* name;
  std::int64_t pairs;
  double logit;
  double deviation;
};

void PrintTo(const AccuracyCase& c, std::ostream* out) { *out << c.name; }

class PhaseAccuracy : public testing::TestWithParam<AccuracyCase> {};

TEST_P(PhaseAccuracy, StaysCloseToLongDoubleOverAMillionTokens) {
  constexpr std::int64_t kPiece = 4096;
  const auto [name, pairs, logit, deviation] = GetParam();
  Context ctx = Context::cpu(2);
  Call call({.heads = 1}, 1, kPiece, pairs);
  std::vector<long double> exact(static_cast<std::size_t>(pairs), 0.0L);
  const auto worst = [&] {
    long double largest = 0.0L;
    for (std::size_t p = 0; p < exact.size(); ++p) {
      largest = std::max(largest, circular_distance(call.state[p] * kRadiansPerUnit, exact[p]));
    }
    return static_cast<double>(largest);
  };
  for (std::int64_t seen = 0; seen < (1 << 20);) {
    const Philox random(5, static_cast<std::uint64_t>(seen));
    for (std::size_t t = 0; t < call.logits.size(); ++t) {
      call.logits[t] = static_cast<float>(logit + deviation * random.normal(t));
    }
    call.run(ctx);
    for (const float z : call.logits) {
      const long double f = 1.0L / (1.0L + std::log1p(std::exp(static_cast<long double>(z))));
      long double power = 1.0L;
      for (long double& phase : exact) {
        phase += power;
        power *= f;
      }
    }
    seen += kPiece;
    // A token of these clocks adds less than a unit: up to half of one by rounding its increment,
    // and some by rounding f.
    if (seen == 1 << 16) {
      EXPECT_LT(worst(), 1e-4);
    }
  }
  EXPECT_LT(worst(), 1.6e-3);
}

INSTANTIATE_TEST_SUITE_P(Frequencies, PhaseAccuracy,
                         testing::Values(AccuracyCase{"rope_start", 32, -0.926656868, 0.0},
                                         AccuracyCase{"rope_start_wide_head", 64,
                                                      rope_gate_bias(64, 10000.0), 0.0},
                                         AccuracyCase{"fast_clock", 64, -9.0, 0.0},
                                         AccuracyCase{"slow_clock", 32, 6.0, 0.0},
                                         AccuracyCase{"random", 32, -0.926656868, 1.0},
                                         AccuracyCase{"random_wide", 64, -2.0, 3.0}),
                         [](const auto& info) { return info.param.name; });

struct RopeCase {
  std::int64_t pairs;
  double base;
};

void PrintTo(const RopeCase& c, std::ostream* out) { *out << c.pairs << " pairs, base " << c.base; }

class PhaseStart : public testing::TestWithParam<RopeCase> {};

TEST_P(PhaseStart, EqualsRopeForFourThousandTokens) {
  constexpr std::int64_t kLength = 4096;
  const auto [pairs, base] = GetParam();
  Context ctx = Context::cpu(2);
  // With chunks of one token the carries are every token's phase.
  Call call({.heads = 1, .chunk = 1}, 1, kLength + 1, pairs);
  std::fill(call.logits.begin(), call.logits.end(),
            static_cast<float>(rope_gate_bias(pairs, base)));
  call.run(ctx);
  const auto increments = rope_increments(pairs, base);
  long double worst_carope = 0.0L;
  long double worst_rope = 0.0L;
  for (std::int64_t p = 0; p < pairs; ++p) {
    const long double theta =
        std::pow(static_cast<long double>(base),
                 -static_cast<long double>(p) / static_cast<long double>(pairs));
    for (std::int64_t t = 1; t <= kLength; ++t) {
      const long double exact = theta * static_cast<long double>(t);
      const std::uint32_t rope =
          static_cast<std::uint32_t>(t) * increments[static_cast<std::size_t>(p)];
      const std::uint32_t phase = call.carry[static_cast<std::size_t>(t * pairs + p)];
      worst_carope = std::max(worst_carope, circular_distance(phase * kRadiansPerUnit, exact));
      worst_rope = std::max(worst_rope, circular_distance(rope * kRadiansPerUnit, exact));
    }
  }
  EXPECT_LT(static_cast<double>(worst_carope), 1e-4);
  EXPECT_LT(static_cast<double>(worst_rope), 1e-4);
}

INSTANTIATE_TEST_SUITE_P(HeadsAndBases, PhaseStart,
                         testing::Values(RopeCase{1, 10000.0}, RopeCase{4, 10000.0},
                                         RopeCase{16, 10000.0}, RopeCase{32, 10000.0},
                                         RopeCase{32, 500.0}, RopeCase{32, 2.08e7},
                                         RopeCase{64, 10000.0}, RopeCase{64, 500000.0}),
                         [](const auto& info) {
                           return fmt::format("pairs{}_base{:.0f}", info.param.pairs,
                                              info.param.base);
                         });

/// CARoPE, attention and back, on packed documents: what the identities are about.
class Identities : public testing::Test {
 protected:
  static constexpr std::int64_t kBatch = 2;
  static constexpr std::int64_t kLength = 90;
  static constexpr std::int64_t kHeads = 2;
  static constexpr std::int64_t kPairs = 4;
  static constexpr std::int64_t kWidth = kHeads * 2 * kPairs;

  Identities() : call_({.heads = kHeads, .chunk = 32}, kBatch, kLength, kPairs) {
    for (std::int32_t b = 0; b < kBatch; ++b) {
      for (std::int32_t t = 0; t < kLength; ++t) {
        starts_.push_back(t < 41 ? 0 : (t < 42 ? 41 : 42));
      }
    }
    call_.seq.document_start = Tensor::of(starts_, {kBatch, kLength});
    fill_random_logits(call_.logits, -0.9, 1.0);
    call_.run(ctx_);

    std::vector<float> out(kBatch * kLength * kWidth);
    std::vector<float> dout = out;
    std::vector<float> logsumexp(kBatch * kHeads * kLength);
    const Philox random(13, 1);
    for (std::size_t i = 0; i < dout.size(); ++i) {
      dout[i] = static_cast<float>(random.normal(i));
    }
    const Shape shape{kBatch * kLength, kWidth};
    const Shape row_shape{kBatch, kHeads, kLength};
    const Attention attention{.heads = kHeads};
    carope::attention(ctx_, attention, call_.seq, call_.rows(call_.qkv), Tensor::of(out, shape),
                      Tensor::of(logsumexp, row_shape));
    attention_backward(ctx_, attention, call_.seq,
                       {.qkv = call_.rows(call_.qkv),
                        .out = Tensor::of(out, shape),
                        .logsumexp = Tensor::of(logsumexp, row_shape),
                        .dout = Tensor::of(dout, shape),
                        .dqkv = call_.rows(call_.dqkv)});
  }

  /// The gradient of one phase at one token: q̃ × dq̃ + k̃ × dk̃ of the pair.
  double phase_gradient(std::int64_t b, std::int64_t t, std::int64_t h, std::int64_t p) const {
    double sum = 0.0;
    for (const std::int64_t part : {0, 1}) {
      const auto x = static_cast<std::size_t>((b * kLength + t) * 3 * kWidth + part * kWidth +
                                              h * 2 * kPairs + p);
      const std::size_t y = x + kPairs;
      sum += static_cast<double>(call_.qkv[x]) * call_.dqkv[y] -
             static_cast<double>(call_.qkv[y]) * call_.dqkv[x];
    }
    return sum;
  }

  Context ctx_ = Context::cpu(2);
  Call call_;
  std::vector<std::int32_t> starts_;
};

TEST_F(Identities, PhaseGradientsOfADocumentSumToZero) {
  const std::vector<std::pair<std::int64_t, std::int64_t>> documents{
      {0, 41}, {41, 42}, {42, kLength}};
  for (std::int64_t b = 0; b < kBatch; ++b) {
    for (std::int64_t h = 0; h < kHeads; ++h) {
      for (std::int64_t p = 0; p < kPairs; ++p) {
        for (const auto& [begin, end] : documents) {
          double sum = 0.0;
          double size = 0.0;
          for (std::int64_t t = begin; t < end; ++t) {
            sum += phase_gradient(b, t, h, p);
            size += std::abs(phase_gradient(b, t, h, p));
          }
          EXPECT_LE(std::abs(sum), tolerance(DType::kF32).gradient * std::max(size, 1e-2)) << begin;
          if (end - begin > 1) {
            EXPECT_GT(size, 0.1);  // the gradients themselves are not zero
          }
        }
      }
    }
  }
}

TEST_F(Identities, TheFirstTokenOfADocumentHasNoGateGradient) {
  call_.run_backward(ctx_);
  float largest = 0.0F;
  for (const float gradient : call_.dlogits) {
    largest = std::max(largest, std::abs(gradient));
  }
  ASSERT_GT(largest, 0.1F);
  for (std::int64_t b = 0; b < kBatch; ++b) {
    for (const std::int64_t t : {0, 41, 42}) {
      for (std::int64_t h = 0; h < kHeads; ++h) {
        const float gradient =
            call_.dlogits[static_cast<std::size_t>((b * kLength + t) * kHeads + h)];
        EXPECT_LE(std::abs(gradient), tolerance(DType::kF32).gradient * largest) << "token " << t;
      }
    }
  }
}

}  // namespace
}  // namespace carope::test
