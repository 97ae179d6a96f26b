#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>

#include "support/cases.h"
#include "support/compare.h"
#include "support/ledger.h"

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

const auto kName = [](const auto& info) { return info.param.name(); };
const auto kAny = [](const OpCase&) { return true; };
const auto kDifferentiable = [](const OpCase& op) { return static_cast<bool>(op.backward); };

INSTANTIATE_TEST_SUITE_P(Sweep, Ops, testing::ValuesIn(sweep(kAny, {1, 2, 8})), kName);
INSTANTIATE_TEST_SUITE_P(Sweep, OpsWithGradient,
                         testing::ValuesIn(sweep(kDifferentiable, {1, 2, 8})), kName);
INSTANTIATE_TEST_SUITE_P(Sweep, OpsOnThreads, testing::ValuesIn(sweep(kAny, {2, 8})), kName);

}  // namespace
}  // namespace carope::test
