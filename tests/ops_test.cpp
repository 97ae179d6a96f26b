#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "core/random.h"
#include "ops/linear.h"
#include "support/cases.h"
#include "support/compare.h"
#include "support/complex_step.h"
#include "support/op_run.h"

// Every operation at every shape of the sweep, on several numbers of threads: its results and
// gradients against the reference, and against the bits that one thread gives.
namespace carope::test {
namespace {

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

/// The largest errors seen of each operation, printed at the end: the tolerances are set by them.
class Ledger : public testing::Environment {
 public:
  struct Worst {
    double forward = 0.0;
    double gradient = 0.0;
  };

  static Worst& of(const OpCase& op) { return worst()[op.op]; }

  void TearDown() override {
    fmt::print("largest relative errors\n{:<20}{:>12}{:>12}\n", "operation", "forward", "gradient");
    for (const auto& [op, errors] : worst()) {
      fmt::print("{:<20}{:>12.1e}{:>12}\n", op, errors.forward,
                 errors.gradient > 0.0 ? fmt::format("{:.1e}", errors.gradient) : "-");
    }
  }

 private:
  static std::map<std::string, Worst>& worst() {
    static std::map<std::string, Worst> worst;
    return worst;
  }
};

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
    const auto outputs = run.outputs();
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const double error =
          relative_error(std::span<const float>(outputs[i]), std::span(expect().outputs[i]));
      EXPECT_LE(error, kTolerance.forward) << op().outputs[i].name;
      double& worst = Ledger::of(op()).forward;
      worst = std::max(worst, error);
    }
  }

  void check_gradient(std::size_t input, const std::vector<float>& gradient) const {
    const Input& in = op().inputs[input];
    const ExpectedGradient& reference = expect().gradients[input];
    const bool accumulates = in.write == Write::kAccumulate && !in.gradient_starts_as;
    const std::vector<float> before =
        accumulates ? gradient_before(op(), input) : std::vector<float>(gradient.size());
    std::vector<float> found;
    std::vector<double> wanted;
    for (std::size_t i = 0; i < reference.elements.size(); ++i) {
      found.push_back(gradient[reference.elements[i]]);
      wanted.push_back(reference.values[i] + static_cast<double>(before[reference.elements[i]]));
    }
    double found_sum = 0.0;
    double wanted_sum = reference.signed_sum;
    double norm = 0.0;
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      found_sum += reference.signs[i] * static_cast<double>(gradient[i]);
      wanted_sum += reference.signs[i] * static_cast<double>(before[i]);
      norm += static_cast<double>(gradient[i]) * static_cast<double>(gradient[i]);
    }
    const double error =
        relative_error(std::span<const float>(found), std::span<const double>(wanted));
    const double sum_error =
        std::abs(found_sum - wanted_sum) / (norm > 0.0 ? std::sqrt(norm) : 1.0);
    EXPECT_LE(error, kTolerance.gradient) << in.name;
    EXPECT_LE(sum_error, kTolerance.gradient) << in.name << ", all elements with random signs";
    double& worst = Ledger::of(op()).gradient;
    worst = std::max({worst, error, sum_error});
  }

  static inline const Tolerance kTolerance = tolerance(DType::kF32);
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
  const auto gradients = run.gradients();
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (op().inputs[i].differentiable) {
      check_gradient(i, gradients[i]);
    }
  }
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
                  Tensor::of(bias, {out}), Tensor::of(pre, shape), Tensor::of(y, shape),
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

const auto kName = [](const auto& info) { return info.param.name(); };
const auto kAny = [](const OpCase&) { return true; };
const auto kDifferentiable = [](const OpCase& op) { return static_cast<bool>(op.backward); };

INSTANTIATE_TEST_SUITE_P(Sweep, Ops, testing::ValuesIn(sweep(kAny, {1, 2, 8})), kName);
INSTANTIATE_TEST_SUITE_P(Sweep, OpsWithGradient,
                         testing::ValuesIn(sweep(kDifferentiable, {1, 2, 8})), kName);
INSTANTIATE_TEST_SUITE_P(Sweep, OpsOnThreads, testing::ValuesIn(sweep(kAny, {2, 8})), kName);

}  // namespace
}  // namespace carope::test
