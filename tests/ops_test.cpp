#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "core/random.h"
#include "ops/linear.h"
#include "ops/norm.h"
#include "support/cases.h"
#include "support/compare.h"
#include "support/errors.h"
#include "support/ledger.h"

// Every operation at every shape of the sweep, on several numbers of threads: its results and
// gradients against the reference, and against the bits that one thread gives.
namespace carope::test {
namespace {

using testing::HasSubstr;

const std::vector<OpCase>& cases() {
  static const std::vector<OpCase> all = all_test_cases();
  return all;
}

/// The reference is slow and does not depend on threads: it is computed once a case.
const Expected& expected(std::size_t index) {
  static std::map<std::size_t, Expected> known;
  const auto found = known.find(index);
  return found != known.end() ? found->second
                              : known.emplace(index, expected_of(cases()[index])).first->second;
}

[[maybe_unused]] const auto* const kLedger = testing::AddGlobalTestEnvironment(new Ledger);

struct Param {
  std::size_t index;  // of the case
  int threads;

  std::string name() const { return fmt::format("{}_threads{}", cases()[index].name(), threads); }
};

void PrintTo(const Param& param, std::ostream* out) { *out << param.name(); }

/// Every case that `has` holds for, on each of these numbers of threads. Eight are more than most
/// of the small cases have rows.
template <class Has>
std::vector<Param> sweep(const Has& has, std::initializer_list<int> numbers) {
  std::vector<Param> params;
  for (std::size_t i = 0; i < cases().size(); ++i) {
    for (const int threads : numbers) {
      if (has(cases()[i])) {
        params.push_back({i, threads});
      }
    }
  }
  return params;
}

class Ops : public testing::TestWithParam<Param> {
 protected:
  const OpCase& op() const { return cases()[GetParam().index]; }
  const Expected& expect() const { return expected(GetParam().index); }

  void check_outputs(const OpRun& run) const {
    Ledger::expect_outputs(op().op, output_deviations(run, expect()));
  }
};

class OpsWithGradient : public Ops {};
class OpsOnThreads : public Ops {};

TEST_P(Ops, ForwardMatchesReference) {
  Context ctx = Context::cpu(GetParam().threads);
  OpRun run(op(), ctx);
  run.forward();
  check_outputs(run);
}

TEST_P(OpsWithGradient, GradientMatchesReference) {
  Context ctx = Context::cpu(GetParam().threads);
  OpRun run(op(), ctx);
  run.forward();
  if (op().backward_redoes_forward) {
    run.spoil_outputs();
  }
  run.backward();
  check_outputs(run);
  Ledger::expect_gradients(op().op, gradient_deviations(run, expect()));
}

TEST_P(OpsOnThreads, SameBitsAsOnOneThread) {
  const auto results = [&](int threads) {
    Context ctx = Context::cpu(threads);
    OpRun run(op(), ctx);
    run.forward();
    if (op().backward) {
      run.backward();
    }
    auto values = run.outputs();
    for (auto& gradient : run.gradients()) {
      values.push_back(std::move(gradient));
    }
    return values;
  };
  const auto one = results(1);
  const auto several = results(GetParam().threads);
  for (std::size_t i = 0; i < one.size(); ++i) {
    const std::string& name =
        i < op().outputs.size() ? op().outputs[i].name : op().inputs[i - op().outputs.size()].name;
    EXPECT_TRUE(same_bits(one[i], several[i])) << name;
  }
}

TEST(Rounding, ByRowGivesARowTheSameBitsWhicheverRowsComeWithIt) {
  constexpr std::int64_t kMost = 71;
  const auto values = [](std::int64_t count, std::uint64_t seed) {
    std::vector<float> values(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(Philox(seed, 1).normal(i));
    }
    return values;
  };
  Context ctx = Context::cpu(2);
  for (const auto& [in, out] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {1, 1}, {7, 70}, {16, 3}, {29, 130}, {64, 701}, {1100, 6}}) {
    auto x = values(kMost * in, 1);
    auto weight = values(out * in, 2);
    auto bias = values(out, 3);
    const Tensor rows = Tensor::of(x, {kMost, in});
    const auto results = [&](std::int64_t begin, std::int64_t end) {
      std::vector<float> pre(static_cast<std::size_t>((end - begin) * out));
      std::vector<float> y(pre.size());
      std::vector<float> plain(pre.size());
      const Shape shape{end - begin, out};
      linear_gelu(ctx, rows.slice_rows(begin, end), Tensor::of(weight, {out, in}),
                  Tensor::of(bias, {out}), {Tensor::of(pre, shape)}, Tensor::of(y, shape),
                  Rounding::kByRow);
      linear(ctx, rows.slice_rows(begin, end), Tensor::of(weight, {out, in}), {},
             Tensor::of(plain, shape), Rounding::kByRow);
      return std::vector{pre, y, plain};
    };
    const auto whole = results(0, kMost);
    for (const std::int64_t piece : {1, 2, 3, 5, 8, 64, 65}) {
      for (std::int64_t begin = 0; begin < kMost; begin += piece) {
        const std::int64_t end = std::min(kMost, begin + piece);
        const auto part = results(begin, end);
        for (std::size_t i = 0; i < part.size(); ++i) {
          ASSERT_TRUE(same_bits(part[i], std::span(whole[i]).subspan(begin * out, part[i].size())))
              << in << " to " << out << ", rows " << begin << " to " << end << ", result " << i;
        }
      }
    }
  }
}

TEST(NormGate, GivesTheBitsOfTheLayerByItself) {
  const OpCase op = gated_norm_case({.rows = 71, .width = 40, .heads = 12});
  Context ctx = Context::cpu(2);
  OpRun run(op, ctx);
  run.forward();
  const OpTensors& t = run.tensors();
  std::vector<float> logits(71 * 12);
  linear(ctx, t.out[0], t.in[3], t.in[4], Tensor::of(logits, {71, 12}), Rounding::kByRow);
  EXPECT_TRUE(same_bits(values_of(t.out[3]), logits));
}

TEST(NormGate, RefusesTensorsThatDoNotFit) {
  Context ctx = Context::cpu(1);
  std::vector<float> rows(4 * 8), columns(8), statistics(4), weight(3 * 8), logits(4 * 3), other(7);
  const Tensor x = Tensor::of(rows, {4, 8});
  const Tensor c = Tensor::of(columns, {8});
  const Tensor n = Tensor::of(statistics, {4});
  const auto message = [&](const NormGate& gate) {
    return message_of<ShapeError>([&] { layer_norm(ctx, x, {c, c}, {x, n, n}, gate); });
  };
  const Tensor w = Tensor::of(weight, {3, 8});
  const Tensor z = Tensor::of(logits, {4, 3});
  EXPECT_THAT(message({w, {}, {}}), HasSubstr("needs both its weight and its logits"));
  EXPECT_THAT(message({Tensor::of(weight, {8, 3}), {}, z}), HasSubstr("cannot take rows of 8"));
  EXPECT_THAT(message({w, {}, Tensor::of(logits, {3, 4})}), HasSubstr("a gate of 3 outputs"));
  EXPECT_THAT(message({w, Tensor::of(other, {7}), z}), HasSubstr("the bias of a gate"));
}

const auto kName = [](const auto& info) { return info.param.name(); };
const auto kAny = [](const OpCase&) { return true; };
const auto kDifferentiable = [](const OpCase& op) { return static_cast<bool>(op.backward); };

INSTANTIATE_TEST_SUITE_P(Sweep, Ops, testing::ValuesIn(sweep(kAny, {1, 2, 8})), kName);
INSTANTIATE_TEST_SUITE_P(Sweep, OpsWithGradient,
                         testing::ValuesIn(sweep(kDifferentiable, {1, 2, 8})), kName);
INSTANTIATE_TEST_SUITE_P(Sweep, OpsOnThreads, testing::ValuesIn(sweep(kAny, {2, 8})), kName);

}  // namespace
}  // namespace carope::test
