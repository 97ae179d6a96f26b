#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "core/arena.h"
#include "core/random.h"
#include "ops/rotation.h"
#include "support/cases.h"
#include "support/compare.h"
#include "support/cuda_contexts.h"
#include "support/ledger.h"

// Every operation on a GPU, in fp32 and in bf16, from the same descriptions as on the CPU: its
// results and gradients against the reference, or against the CPU engine where a shape is too large
// for the reference; and against itself, bit by bit.
namespace carope::test {
namespace {

[[maybe_unused]] const auto* const kLedger = testing::AddGlobalTestEnvironment(new Ledger);

struct Case {
  OpCase op;
  bool large;  // its reference is the CPU engine
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = [] {
    std::vector<Case> made;
    for (const auto& [list, large] : {std::pair(all_test_cases(), false),
                                      {bf16_test_cases(), false},
                                      {training_test_cases(), true}}) {
      for (const OpCase& op : list) {
        made.push_back({op, large});
      }
    }
    return made;
  }();
  return all;
}

struct Param {
  std::size_t index;  // of the case
  DType activation;
  std::size_t context;

  const OpCase& op() const { return cases()[index].op; }
  Expected expected() const {
    return cases()[index].large ? computed_on_cpu(op(), activation) : expected_of(op(), activation);
  }
  std::string label() const {
    return fmt::format("{}_{}_{}", op().op, to_string(activation), cuda_contexts()[context].name);
  }
  std::string name() const { return label() + "_" + op().variant; }
};

void PrintTo(const Param& param, std::ostream* out) { *out << param.name(); }

/// Whether a tensor of the case has another type in a model of this type than in others.
bool differs_in(DType activation, const OpCase& op) {
  const auto is_full = [](const auto& tensor) { return tensor.precision == Precision::kFull; };
  return activation == DType::kF32
             ? !op.bf16_only
             : !std::all_of(op.inputs.begin(), op.inputs.end(), is_full) ||
                   !std::all_of(op.outputs.begin(), op.outputs.end(), is_full);
}

/// Everything that can run on this machine, of the shapes of training or of the others.
std::vector<Param> sweep(bool large) {
  std::vector<Param> params;
  const auto contexts = has_gpu() ? cuda_contexts() : std::vector<CudaContext>{};
  for (std::size_t context = 0; context < contexts.size(); ++context) {
    for (std::size_t i = 0; i < cases().size(); ++i) {
      for (const DType activation : {DType::kF32, DType::kBF16}) {
        const OpCase& op = cases()[i].op;
        if (cases()[i].large == large && contexts[context].concerns(op, activation) &&
            differs_in(activation, op)) {
          params.push_back({i, activation, context});
        }
      }
    }
  }
  return params;
}

/// One context of a kind serves all tests, as one serves all operations of a model: what an
/// operation leaves in scratch memory is there when the next one runs.
class CudaOps : public testing::TestWithParam<Param> {
 protected:
  static void SetUpTestSuite() {
    for (const CudaContext& kind : cuda_contexts()) {
      contexts_.push_back(kind.make());
    }
  }
  static void TearDownTestSuite() { contexts_.clear(); }

  const OpCase& op() const { return GetParam().op(); }
  Context& ctx() const { return contexts_[GetParam().context]; }

  std::vector<std::vector<float>> results() const {
    OpRun run(op(), ctx(), GetParam().activation);
    run.forward();
    if (op().backward) {
      run.backward();
    }
    auto values = run.outputs();
    for (auto& gradient : run.gradients()) {
      values.push_back(std::move(gradient));
    }
    return values;
  }

 private:
  static inline std::vector<Context> contexts_;
};

void expect_matches(const Param& param, Context& ctx, bool rounds, const std::string& label) {
  const OpCase& op = param.op();
  const Expected expected = param.expected();
  OpRun run(op, ctx, param.activation);
  const auto round = [&] {
    if (rounds) {
      run.round_results();
    }
  };
  run.forward();
  round();
  Ledger::expect_outputs(label, output_deviations(run, expected));
  if (!op.backward) {
    return;
  }
  if (op.backward_redoes_forward) {
    run.spoil_outputs();
  }
  run.backward();
  round();
  Ledger::expect_outputs(label, output_deviations(run, expected));
  Ledger::expect_gradients(label, gradient_deviations(run, expected));
}

TEST_P(CudaOps, MatchesReference) { expect_matches(GetParam(), ctx(), false, GetParam().label()); }

TEST_P(CudaOps, GivesTheSameBitsAgain) {
  if (!cuda_contexts()[GetParam().context].repeats) {
    GTEST_SKIP() << "nobody promises it";
  }
  const auto once = results();
  const auto again = results();
  for (std::size_t i = 0; i < once.size(); ++i) {
    const std::string& name =
        i < op().outputs.size() ? op().outputs[i].name : op().inputs[i - op().outputs.size()].name;
    EXPECT_TRUE(same_bits(once[i], again[i])) << name;
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaOps);
const auto kName = [](const auto& info) { return info.param.name(); };
INSTANTIATE_TEST_SUITE_P(Sweep, CudaOps, testing::ValuesIn(sweep(false)), kName);
INSTANTIATE_TEST_SUITE_P(Training, CudaOps, testing::ValuesIn(sweep(true)), kName);

TEST(Cuda, SweepsOverEveryOperation) {
  if (!has_gpu()) {
    GTEST_SKIP() << "no GPU is present";
  }
  EXPECT_GE(sweep(false).size() + sweep(true).size(), cases().size());
}

TEST(Cuda, HasThePhasesThatTheCpuHandsOut) {
  if (!has_gpu()) {
    GTEST_SKIP() << "no GPU is present";
  }
  const auto phases_on = [](Context ctx, const CaropeCase& c, DType activation) {
    const OpRun run(carope_case(c), ctx, activation);
    const Shape shape{c.seq.batch, c.seq.length, c.heads, c.pairs};
    const Memory memory(ctx.device(), TensorSpec{shape, DType::kU16}.bytes());
    const Tensor phases(memory.data(), {shape, DType::kU16}, ctx.device());
    const OpTensors& t = run.tensors();
    const Sequence seq = bind(c.seq, t);
    const QkvHeads parts = split_qkv(t.out[0], seq, c.heads, c.heads);
    rotate(ctx,
           {.q = parts.q,
            .k = parts.k,
            .layout = c.layout,
            .pairs = c.pairs,
            .logits = t.in[0],
            .chunk = c.chunk,
            .carry = t.saved[0],
            .phases = phases},
           seq);
    std::vector<std::uint16_t> values(static_cast<std::size_t>(shape.size()));
    copy_to_host(values.data(), phases.raw(), phases.bytes(), ctx.device());
    return values;
  };
  for (const RotaryLayout layout : {RotaryLayout::kHalf, RotaryLayout::kInterleaved}) {
    for (const std::int64_t pairs : {5, 32}) {
      for (const DType activation : {DType::kF32, DType::kBF16}) {
        CaropeCase c{.seq = {.batch = 2, .length = 300}, .heads = 3, .pairs = pairs};
        c.layout = layout;
        for (const bool packed : {false, true}) {
          c.seq.document_starts = packed ? std::vector<std::vector<std::int64_t>>{{0, 70}, {0, 1}}
                                         : std::vector<std::vector<std::int64_t>>{};
          EXPECT_EQ(phases_on(cuda_context(), c, activation),
                    phases_on(Context::cpu(2), c, activation))
              << pairs << " pairs, " << to_string(activation) << (packed ? ", packed" : "");
        }
      }
    }
  }
}

/// What a gated rotation makes of q and k that are zero, and leaves.
struct PhasesLeft {
  std::vector<std::uint16_t> phases;
  std::vector<std::uint32_t> carry;
  std::vector<float> qkv;

  static PhasesLeft on(Context ctx, std::int64_t heads, std::int64_t exponent_start,
                       std::int64_t chunk, Sequence seq, const std::vector<float>& logits,
                       const std::vector<std::int32_t>& starts) {
    constexpr std::int64_t kPairs = 32;
    const auto read = [](const Tensor& tensor, auto& values) {
      values.resize(static_cast<std::size_t>(tensor.size()));
      copy_to_host(values.data(), tensor.raw(), tensor.bytes(), tensor.device());
    };
    Memory memories[5];
    const auto tensor = [&](int i, const TensorSpec& spec) {
      memories[i] = Memory(ctx.device(), spec.bytes());
      clear(memories[i].data(), spec.bytes(), ctx.device());
      return Tensor(memories[i].data(), spec, ctx.device());
    };
    if (!starts.empty()) {
      seq.document_start =
          upload(ctx.device(), starts, memories[0]).reshape({seq.batch, seq.length});
    }
    const Tensor gates =
        upload(ctx.device(), logits, memories[1]).reshape({seq.batch, seq.length, heads});
    const Tensor qkv = tensor(2, {{seq.batch, seq.length, 6 * heads * kPairs}});
    const Tensor phases = tensor(4, {{seq.batch, seq.length, heads, kPairs}, DType::kU16});
    const QkvHeads parts = split_qkv(qkv, seq, heads, heads);
    Rotation rotation{.q = parts.q,
                      .k = parts.k,
                      .pairs = kPairs,
                      .logits = gates,
                      .exponent_start = exponent_start,
                      .chunk = chunk,
                      .phases = phases};
    const Tensor carry = tensor(3, rotation.carry_spec(seq));
    rotation.carry = carry;
    rotate(ctx, rotation, seq);
    PhasesLeft left;
    read(phases, left.phases);
    read(carry, left.carry);
    read(qkv, left.qkv);
    return left;
  }
};

TEST(Cuda, LeavesTheSamePhasesAndCarriesAsTheCpuHoweverRowsAreCut) {
  if (!has_gpu()) {
    GTEST_SKIP() << "no GPU is present";
  }
  struct Cut {
    std::int64_t batch, length, chunk;
    std::int64_t exponent_start = 0;
  };
  for (const Cut& cut : {Cut{2, 1, 512},
                         {3, 33, 512, 2},
                         {2, 512, 512},
                         {2, 900, 1024},
                         {2, 1100, 512},  // a block for each chunk
                         {90, 290, 256},  // rows enough for a block to take several chunks
                         {2, 300, 100}}) {
    constexpr std::int64_t kHeads = 3;
    const Sequence seq{.batch = cut.batch, .length = cut.length};
    const Philox random(17, 0);
    std::vector<float> logits(static_cast<std::size_t>(seq.tokens() * kHeads));
    for (std::size_t i = 0; i < logits.size(); ++i) {
      logits[i] = static_cast<float>(2.0 * random.normal(i));
    }
    logits[logits.size() / 2] = NAN;
    for (const bool packed : {false, true}) {
      std::vector<std::int32_t> starts;
      for (std::int64_t i = 0; packed && i < seq.tokens(); ++i) {
        const auto t = static_cast<std::int32_t>(i % cut.length);
        const bool begins = t == 0 || i % 97 == 0 || (t >= 255 && t <= 257);
        starts.push_back(begins ? t : starts.back());
      }
      const auto left_on = [&](Context ctx) {
        return PhasesLeft::on(std::move(ctx), kHeads, cut.exponent_start, cut.chunk, seq, logits,
                              starts);
      };
      const PhasesLeft left = left_on(cuda_context());
      const PhasesLeft expected = left_on(Context::cpu(2));
      const auto where = fmt::format("{} x {} in chunks of {}{}", cut.batch, cut.length, cut.chunk,
                                     packed ? ", packed" : "");
      EXPECT_TRUE(left.phases == expected.phases) << where;
      EXPECT_TRUE(left.carry == expected.carry) << where;
      EXPECT_TRUE(std::equal(left.qkv.begin(), left.qkv.end(), expected.qkv.begin(),
                             [](float a, float b) { return std::isnan(a) == std::isnan(b); }))
          << where;
    }
  }
}

/// The reference knows y as it is before it is stored; this, the logits of y as it is stored.
TEST(Cuda, AGateBehindANormRoundsNothingButItsResult) {
  if (!has_gpu()) {
    GTEST_SKIP() << "no GPU is present";
  }
  Context ctx = Context::cuda();
  for (const std::int64_t width : {40, 512, 768, 1024}) {
    const std::int64_t rows = 100;
    const std::int64_t heads = 12;
    const OpCase op = gated_norm_case({.rows = rows, .width = width, .heads = heads});
    OpRun run(op, ctx, DType::kBF16);
    run.forward();
    const auto y = read(run.tensors().out[0]);
    const auto weight = read(run.tensors().in[3]);
    const auto bias = read(run.tensors().in[4]);
    std::vector<double> expected;
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t head = 0; head < heads; ++head) {
        expected.push_back(std::inner_product(
            y.begin() + row * width, y.begin() + (row + 1) * width, weight.begin() + head * width,
            static_cast<double>(bias[head]), std::plus<double>{}, std::multiplies<double>{}));
      }
    }
    const auto logits = read(run.tensors().out[3]);
    EXPECT_LT(relative_error(std::span<const float>(logits), std::span<const double>(expected)),
              unrounded_tolerance().forward)
        << width;
  }
}

bool has_hopper() { return has_gpu() && cuda::devices().front().compute_major == 9; }

/// A run of a classifier in bf16, forward and backward, and what it was given.
struct ClassifierRun {
  ClassifierRun(Context& ctx, const ClassifierCase& c)
      : op(classifier_case(c)), run(op, ctx, DType::kBF16) {
    run.backward();
    const OpTensors& t = run.tensors();
    hidden = read(t.in[0]);
    weight = read(t.in[1]);
    targets.resize(static_cast<std::size_t>(c.rows));
    copy_to_host(targets.data(), t.constants[0].raw(), t.constants[0].bytes(), ctx.device());
  }

  double logit(std::int64_t row, std::int64_t column) const {
    const std::int64_t width = op.inputs[0].shape[1];
    return std::inner_product(hidden.begin() + row * width, hidden.begin() + (row + 1) * width,
                              weight.begin() + column * width, 0.0, std::plus<double>{},
                              std::multiplies<double>{});
  }

  OpCase op;
  OpRun run;
  std::vector<float> hidden, weight;
  std::vector<std::int32_t> targets;
};

/// It fails where another way was taken: that would store the gradients of the logits.
TEST(Cuda, AClassifierOnHopperStoresPowersOfItsLogits) {
  if (!has_hopper()) {
    GTEST_SKIP() << "no Hopper GPU is present";
  }
  Context ctx = cuda_context();
  const ClassifierCase c{
      .rows = 256, .width = 256, .classes = 320, .ignore_every = 5, .scale = 0.3};
  const ClassifierRun done(ctx, c);
  std::vector<double> expected;
  for (std::int64_t row = 0; row < c.rows; ++row) {
    const std::int32_t target = done.targets[static_cast<std::size_t>(row)];
    const auto first = static_cast<std::ptrdiff_t>(expected.size());
    for (std::int64_t column = 0; column < c.classes; ++column) {
      expected.push_back(target < 0 ? 0.0
                                    : std::exp(done.logit(row, column) - done.logit(row, target)));
    }
    if (target >= 0) {
      expected[static_cast<std::size_t>(first + target)] =
          1.0 - std::accumulate(expected.begin() + first, expected.end(), 0.0);
    }
  }
  const auto stored = read(done.run.tensors().saved[0]);
  EXPECT_LT(relative_error(std::span<const float>(stored), std::span<const double>(expected)),
            tolerance(DType::kBF16).forward);
}

TEST(Cuda, AClassifierOnHopperStaysFiniteWhereLossesAreHuge) {
  if (!has_hopper()) {
    GTEST_SKIP() << "no Hopper GPU is present";
  }
  Context ctx = cuda_context();
  const ClassifierCase c{.rows = 256, .width = 256, .classes = 320, .scale = 1e4};
  const ClassifierRun done(ctx, c);
  constexpr float kHighestThatIsRight = 69.0F;
  const auto losses = done.run.outputs()[0];
  for (std::int64_t row = 0; row < c.rows; ++row) {
    const float loss = losses[static_cast<std::size_t>(row)];
    double largest = -INFINITY;
    for (std::int64_t column = 0; column < c.classes; ++column) {
      largest = std::max(largest, done.logit(row, column));
    }
    const double least = largest - done.logit(row, done.targets[static_cast<std::size_t>(row)]);
    EXPECT_TRUE(std::isfinite(loss)) << row;
    EXPECT_EQ(least > kHighestThatIsRight, loss > kHighestThatIsRight) << row << ": " << least;
  }
  for (const auto& gradient : done.run.gradients()) {
    EXPECT_TRUE(
        std::all_of(gradient.begin(), gradient.end(), [](float x) { return std::isfinite(x); }));
    EXPECT_TRUE(std::any_of(gradient.begin(), gradient.end(), [](float x) { return x != 0.0F; }));
  }
}

/// What storing activations in bf16 costs by itself: the CPU computes in fp32, and its results are
/// rounded as a GPU would store them. The tolerances of bf16 are set by this.
class RoundedOnCpu : public testing::TestWithParam<Param> {};

TEST_P(RoundedOnCpu, StaysWithinTheToleranceOfBf16) {
  Context ctx = Context::cpu(2);
  expect_matches(GetParam(), ctx, true, GetParam().op().op + "_rounded");
}

std::vector<Param> rounded_sweep() {
  std::vector<Param> params;
  for (std::size_t i = 0; i < cases().size(); ++i) {
    const OpCase& op = cases()[i].op;
    const bool rounds_copies = op.op == "adamw";  // which the CPU does not
    if (!cases()[i].large && !rounds_copies && differs_in(DType::kBF16, op)) {
      params.push_back({i, DType::kBF16, 0});
    }
  }
  return params;
}

INSTANTIATE_TEST_SUITE_P(Sweep, RoundedOnCpu, testing::ValuesIn(rounded_sweep()),
                         [](const auto& info) { return info.param.op().name(); });

}  // namespace
}  // namespace carope::test
