// Whole models on a GPU in the shapes that training has: heads of 64, and sequences, rows and
// widths of whole tiles. Those take kernels that small and odd models never reach: attention that
// rotates, products with a GELU, the norm with the gate inside.
#include <gtest/gtest.h>

#include "core/graph.h"
#include "support/cuda_model.h"
#include "train/optimizer.h"

namespace carope::test {
namespace {

constexpr std::int64_t kVocabulary = 1088;  // in tiles of 64, not of 256

struct Param {
  ModelCase model;
  std::int64_t batch, length, heads;

  std::string name() const {
    return fmt::format("{}_B{}_T{}_H{}", model.name, batch, length, heads);
  }
};

void PrintTo(const Param& param, std::ostream* out) { *out << param.name(); }

/// Every encoding and option, and the paper's two in the width of its larger model.
std::vector<Param> params() {
  std::vector<Param> params;
  for (ModelCase c : gpu_model_cases()) {
    if (c.options.contains("weight_deviation")) {
      c.options["weight_deviation"] = 0.02;  // with more, a wide model's phases are chance
    }
    params.push_back({c, 4, 128, 4});
    params.push_back({c, 2, 512, 8});
    if (c.name == "carope" || c.name == "rope") {
      params.push_back({c, 1, 512, 12});
    }
  }
  return params;
}

GptConfig config_of(const Param& param) {
  constexpr std::int64_t kHeadDim = 64;
  return {.layers = 2,
          .heads = param.heads,
          .width = param.heads * kHeadDim,
          .vocabulary = kVocabulary,
          .length = param.length,
          .encoding = param.model.encoding,
          .encoding_options = param.model.options};
}

DeviceModel make_model(const Param& param, Context ctx, DType compute) {
  constexpr double kGates = 0.005;
  return perturbed_model(config_of(param), std::move(ctx), compute, kGates);
}

RandomBatch make_batch(const Param& param, std::uint64_t seed = 1) {
  return model_batch(param.model, {.batch = param.batch, .length = param.length}, kVocabulary,
                     seed);
}

class WholeTiles : public testing::TestWithParam<Param> {
 protected:
  void SetUp() override {
    if (!has_gpu()) {
      GTEST_SKIP() << "no GPU is present";
    }
  }

  static Activations plan(DeviceModel& model, Purpose purpose = Purpose::kTraining) {
    return model.gpt().plan({.batch = GetParam().batch,
                             .length = GetParam().length,
                             .purpose = purpose,
                             .documents = GetParam().model.documents});
  }
};

TEST_P(WholeTiles, LossAndGradientsMatchTheCpu) {
  constexpr std::int64_t kChunk = 256;  // as many rows of logits as a large model has room for
  RandomBatch batch = make_batch(GetParam());
  DeviceModel cpu = make_model(GetParam(), Context::cpu(), DType::kF32);
  Activations cpu_memory = plan(cpu);
  const double expected = cpu.loss_and_gradients(batch.view(), cpu_memory);
  for (const DType compute : compute_types(GetParam().model)) {
    const ModelTolerance tolerance = model_tolerance(compute);
    DeviceModel cuda = make_model(GetParam(), cuda_context(), compute);
    Activations memory = plan(cuda);
    for (const std::int64_t rows : {memory.logits.rows(), kChunk}) {
      SCOPED_TRACE(fmt::format("{}, logits of {} rows", to_string(compute), rows));
      memory.logits = memory.logits.slice_rows(0, rows);
      EXPECT_NEAR(cuda.loss_and_gradients(batch.view(), memory), expected, tolerance.loss);
      RecordProperty(fmt::format("largest_error_{}_{}", to_string(compute), rows),
                     fmt::format("{:.1e}", expect_same_gradients(cuda, cpu, tolerance)));
    }
  }
}

TEST_P(WholeTiles, ReadsOnlyWhatItHasWritten) {
  RandomBatch batch = make_batch(GetParam());
  DeviceModel model = make_model(GetParam(), cuda_context(), DType::kBF16);
  Activations memory = plan(model);
  expect_no_use_of_what_was_there(model, batch, memory);
}

INSTANTIATE_TEST_SUITE_P(Encodings, WholeTiles, testing::ValuesIn(params()),
                         [](const auto& info) { return info.param.name(); });

/// Otherwise the tests above would pass without the kernels that they are for.
TEST(WholeTilesOnHopper, AreWhatItsAttentionTakes) {
  constexpr int kHopper = 9;
  if (!has_gpu()) {
    GTEST_SKIP() << "no GPU is present";
  }
  if (cuda::devices().front().compute_major != kHopper) {
    GTEST_SKIP() << "the kernels are Hopper's";
  }
  for (const Param& param : params()) {
    EXPECT_TRUE(serves_rotate_and_attend({DeviceKind::kCuda, 0}, {.dtype = DType::kBF16,
                                                                  .heads = 1,
                                                                  .key_heads = 1,
                                                                  .head_dim = 64,
                                                                  .length = param.length}))
        << param.name();
  }
}

class TrainingStep : public WholeTiles {};

/// A model that is trained in bf16, each step from the two halves of one batch, as Trainer does it.
class Steps {
 public:
  Steps(const Param& param, bool deterministic)
      : model_(make_model(param, cuda_context(deterministic), DType::kBF16)),
        memory_(model_.gpt().plan({.batch = param.batch / 2,
                                   .length = param.length,
                                   .documents = param.model.documents})),
        optimizer_(model_.parameters(), {}),
        data_(make_batch(param)) {
    const Batch loaded = data_.view();
    const Batch batch = room_.upload(model_.ctx(), loaded, kVocabulary);
    for (const std::int64_t row : {std::int64_t{0}, param.batch / 2}) {
      halves_.push_back(batch.slice(row, param.batch / 2));
    }
  }

  Context& ctx() { return model_.ctx(); }

  /// All that a step gives to the GPU.
  void issue() {
    constexpr double kLearningRate = 1e-3;
    for (std::size_t i = 0; i < halves_.size(); ++i) {
      model_.gpt().gradients(ctx(), halves_[i], memory_,
                             i == 0 ? Write::kOverwrite : Write::kAccumulate, 0.5);
    }
    optimizer_.update(ctx(), kLearningRate);
  }
  /// Waits for a step; returns the loss before it.
  double finish() {
    optimizer_.finish();
    double loss = 0.0;
    copy_to_host(&loss, memory_.total_loss.raw(), sizeof(loss), ctx().device());
    return loss;
  }
  double take() {
    issue();
    return finish();
  }

  std::vector<std::vector<float>> parameters() const {
    std::vector<std::vector<float>> values;
    for (const Parameter& parameter : model_.parameters()) {
      values.push_back(read(parameter.value));
    }
    return values;
  }

 private:
  DeviceModel model_;
  Activations memory_;
  Optimizer optimizer_;
  RandomBatch data_;
  DeviceBatch room_;
  std::vector<Batch> halves_;
};

TEST_P(TrainingStep, GivesTheSameBitsAgain) {
  constexpr int kSteps = 3;
  Steps once(GetParam(), true);
  Steps again(GetParam(), true);
  for (int step = 0; step < kSteps; ++step) {
    EXPECT_EQ(once.take(), again.take()) << "step " << step;
  }
  expect_same_bits(again.parameters(), once.parameters());
}

/// While a thread records what it gives to a stream, CUDA refuses to allocate or release memory and
/// to wait for the stream, the device or a copy: it would be an error here. So what can be recorded
/// does nothing of it.
TEST_P(TrainingStep, NeitherAllocatesNorWaits) {
  for (const bool deterministic : {true, false}) {
    SCOPED_TRACE(deterministic ? "deterministic" : "fastest");
    Steps plain(GetParam(), deterministic);
    const double loss_before = plain.take();
    const double loss = plain.take();
    EXPECT_LT(loss, loss_before);

    Steps recorded(GetParam(), deterministic);
    recorded.take();  // memory grows, and what is fastest is measured
    Graph graph;
    ASSERT_NO_THROW(graph.record(recorded.ctx(), [&] { recorded.issue(); }));
    ASSERT_TRUE(graph.ready(recorded.ctx()));
    graph.launch(recorded.ctx());
    const double loss_of_record = recorded.finish();
    EXPECT_NEAR(loss_of_record, loss, model_tolerance(DType::kBF16).trained);
    if (deterministic) {
      EXPECT_EQ(loss_of_record, loss);
      expect_same_bits(recorded.parameters(), plain.parameters());
    }
  }
}

TEST_P(TrainingStep, AddsUpMicroBatches) {
  RandomBatch data = make_batch(GetParam());
  DeviceModel model = make_model(GetParam(), cuda_context(), DType::kBF16);
  Activations memory = plan(model);
  model.loss_and_gradients(data.view(), memory);
  const auto whole = gradients_of(model);

  DeviceBatch room;
  const Batch batch = room.upload(model.ctx(), data.view(), kVocabulary);
  for (const Write write : {Write::kOverwrite, Write::kAccumulate}) {
    model.gpt().gradients(model.ctx(), batch, memory, write, 0.5);
  }
  const auto sums = gradients_of(model);
  for (std::size_t i = 0; i < whole.size(); ++i) {
    // Half of a number is as exact as the number.
    EXPECT_LE((relative_error<float, float>(sums[i], whole[i])), unrounded_tolerance().gradient)
        << "gradient " << i;
  }
}

/// In fp32 the same kernels compute everything again. In bf16 the GELU comes from a product's
/// kernel first and from its own the second time, and so does a norm with a gate: a few results
/// are rounded to the other side. And of a GELU whose result is kept, rounded slopes are saved.
/// What roundings do to a gate's gradient, model_tolerance() says.
TEST_P(TrainingStep, RecomputesItsGradients) {
  RandomBatch batch = make_batch(GetParam());
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    SCOPED_TRACE(to_string(compute));
    DeviceModel model = make_model(GetParam(), cuda_context(), compute);
    Activations keeping = plan(model);
    const double loss = model.loss_and_gradients(batch.view(), keeping);
    const auto kept = gradients_of(model);
    Activations recomputing = plan(model, Purpose::kRecomputing);
    EXPECT_EQ(model.loss_and_gradients(batch.view(), recomputing), loss);
    const auto recomputed = gradients_of(model);
    if (compute == DType::kF32) {
      expect_same_bits(recomputed, kept);
    }
    const std::vector<bool> gates = gates_of(model);
    for (std::size_t i = 0; i < kept.size(); ++i) {
      EXPECT_LE((relative_error<float, float>(recomputed[i], kept[i])),
                gates[i] ? model_tolerance(compute).gate_gradient : tolerance(compute).gradient)
          << "gradient " << i;
    }
  }
}

/// Each encoding as it is, and those options with which a step takes other kernels.
std::vector<Param> step_params() {
  std::vector<Param> chosen = params();
  std::erase_if(chosen, [](const Param& param) {
    const std::string& name = param.model.name;
    return (name != param.model.encoding && name != "carope_documents" &&
            name != "carope_embedding") ||
           param.batch < 2;
  });
  return chosen;
}

INSTANTIATE_TEST_SUITE_P(Encodings, TrainingStep, testing::ValuesIn(step_params()),
                         [](const auto& info) { return info.param.name(); });

/// Without this, NeitherAllocatesNorWaits would show nothing.
TEST(RecordedStep, IsRefusedWhereItAllocatesOrWaits) {
  if (!has_gpu()) {
    GTEST_SKIP() << "no GPU is present";
  }
  Steps steps(params().front(), true);
  const double loss_before = steps.take();
  const auto record = [&](const std::function<void()>& issue) {
    Graph graph;
    graph.record(steps.ctx(), issue);
  };
  EXPECT_THROW(record([&] { const Memory more(steps.ctx().device(), 1 << 20); }), DeviceError);
  EXPECT_THROW(record([&] { wait(steps.ctx()); }), DeviceError);
  EXPECT_THROW(record([&] { steps.take(); }), DeviceError);
  EXPECT_LT(steps.take(), loss_before) << "it goes on afterwards";
}

}  // namespace
}  // namespace carope::test
