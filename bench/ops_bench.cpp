// Times the forward and the backward pass of every operation, from the same descriptions that the
// tests check, at the sizes of two small models: 2048 tokens in sequences of 256.
#include <benchmark/benchmark.h>

#include <memory>

#include "support/cases.h"
#include "support/op_run.h"

namespace carope::test {
namespace {

constexpr int kThreads = 2;
constexpr std::int64_t kBatch = 8;
constexpr std::int64_t kLength = 256;
constexpr std::int64_t kTokens = kBatch * kLength;
constexpr std::int64_t kVocabulary = 2048;

struct Model {
  std::int64_t width;
  std::int64_t heads;
};

void add_model(std::vector<OpCase>& cases, const Model& m) {
  const reference::Sequence seq{.batch = kBatch, .length = kLength};
  const std::int64_t dim = m.width / m.heads;
  cases.push_back(embedding_case(
      {.batch = kBatch, .length = kLength, .vocabulary = kVocabulary, .width = m.width}));
  cases.push_back(add_positions_case({.seq = seq, .width = m.width, .positions = kLength}));
  cases.push_back(sinusoid_case({.seq = seq, .width = m.width}));
  cases.push_back(norm_case({.rows = kTokens, .width = m.width}));
  cases.push_back(residual_norm_case({.rows = kTokens, .in = m.width, .width = m.width}));
  cases.push_back(linear_case({.rows = kTokens, .in = m.width, .out = 3 * m.width}));  // qkv
  cases.push_back(linear_case({.rows = kTokens, .in = m.width, .out = m.width}));
  cases.push_back(linear_case({.rows = kTokens, .in = m.width, .out = m.heads}));  // the gate
  cases.push_back(mlp_case({.rows = kTokens, .width = m.width, .hidden = 4 * m.width}));
  cases.push_back(rotary_case({.seq = seq, .heads = m.heads, .pairs = dim / 2}));
  cases.push_back(carope_case({.seq = seq, .heads = m.heads, .pairs = dim / 2}));
  cases.push_back(attention_case({.seq = seq, .heads = m.heads, .dim = dim}));
  cases.push_back(attention_case({.seq = seq, .heads = m.heads, .dim = dim, .slopes = true}));
  cases.push_back(classifier_case({.rows = kTokens, .width = m.width, .classes = kVocabulary}));
  cases.push_back(adamw_case({.elements = 12 * m.width * m.width, .updates = 1}));  // one block
  cases.push_back(gradient_norm_case({.elements = {12 * m.width * m.width}}));
}

std::vector<OpCase> bench_cases() {
  std::vector<OpCase> cases;
  add_model(cases, {.width = 128, .heads = 4});
  add_model(cases, {.width = 384, .heads = 6});
  cases.push_back(cross_entropy_case({.rows = kTokens, .classes = kVocabulary}));
  return cases;
}

/// Google Benchmark calls this several times while it looks for a number of iterations, so the
/// tensors are made anew each time and only while the case runs.
void time_case(benchmark::State& state, const OpCase& op, bool backward) {
  Context ctx = Context::cpu(kThreads);
  OpRun run(op, ctx);
  run.forward();
  for (auto _ : state) {
    backward ? run.backward() : run.forward();
  }
  const auto rounds = static_cast<double>(state.iterations());
  state.SetItemsProcessed(state.iterations() * op.tokens);
  const double flops = backward ? op.backward_flops : op.forward_flops;
  if (flops > 0.0) {
    state.counters["FLOPS"] = benchmark::Counter(flops * rounds, benchmark::Counter::kIsRate);
  }
}

void register_all() {
  for (const OpCase& made : bench_cases()) {
    const auto op = std::make_shared<const OpCase>(made);
    for (const bool backward : {false, true}) {
      if (backward && !op->backward) {
        continue;
      }
      benchmark::RegisterBenchmark(
          (op->op + (backward ? "/backward/" : "/forward/") + op->variant).c_str(),
          [op, backward](benchmark::State& state) { time_case(state, *op, backward); })
          ->UseRealTime()
          ->Unit(benchmark::kMicrosecond);
    }
  }
}

}  // namespace
}  // namespace carope::test

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
    return 1;
  }
  carope::test::register_all();
  benchmark::RunSpecifiedBenchmarks();
}
