// What a machine without a GPU can tell of the CUDA part: that every GPU would take its launches,
// that all of them go to the device they are meant for, and that a step neither waits nor
// allocates.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <numeric>
#include <regex>

#include "core/file.h"
#include "dist/connection.h"
#include "dist/nccl.h"
#include "eval/perplexity.h"
#include "fake_gpus.h"
#include "generate/generator.h"
#include "support/cases.h"
#include "support/cuda_model.h"
#include "support/errors.h"
#include "support/folder.h"
#include "support/shard_files.h"
#include "support/training.h"
#include "train/optimizer.h"
#include "train/trainer.h"

namespace carope::test {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::Not;

constexpr std::int64_t kVocabulary = 50304;

class FakeGpus : public testing::Test {
 protected:
  FakeGpus() { setenv("XDG_CACHE_HOME", folder_.path().c_str(), 1); }  // for what is measured

  TemporaryFolder folder_;
};

/// A model and what trains it on a GPU.
class Training {
 public:
  Training(Context ctx, const GptConfig& config, std::int64_t batch, Purpose purpose)
      : model_(config, std::move(ctx), DType::kBF16),
        memory_(model_.gpt().plan({.batch = batch, .length = config.length, .purpose = purpose})),
        optimizer_(model_.parameters(), {}),
        data_(batch, config.length, config.vocabulary) {
    const Batch loaded = data_.view();
    batch_ = room_.upload(model_.ctx(), loaded, config.vocabulary);
  }

  /// All that a step of two micro-batches gives to the GPU.
  void issue() {
    for (const Write write : {Write::kOverwrite, Write::kAccumulate}) {
      model_.gpt().gradients(model_.ctx(), batch_, memory_, write, 0.5);
    }
    optimizer_.update(model_.ctx(), 1e-3);
  }
  void finish() { optimizer_.finish(); }

 private:
  DeviceModel model_;
  Activations memory_;
  Optimizer optimizer_;
  RandomBatch data_;
  DeviceBatch room_;
  Batch batch_;
};

GptConfig config_of(const std::string& encoding, std::int64_t heads, std::int64_t dim,
                    std::int64_t length) {
  return {.layers = 2,
          .heads = heads,
          .width = heads * dim,
          .vocabulary = kVocabulary,
          .length = length,
          .encoding = encoding};
}

void generate_some(Context ctx, const GptConfig& config) {
  DeviceModel model(config, std::move(ctx), DType::kBF16);
  std::vector<TokenId> allowed(static_cast<std::size_t>(config.vocabulary));
  std::iota(allowed.begin(), allowed.end(), 0);
  const std::vector<TokenId> prompt(700, 1);
  const std::atomic<bool> stop = false;
  const Generated generated =
      generate(model.ctx(), model.gpt(), prompt, {.tokens = 20, .allowed = allowed},
               {.read = [](std::int64_t) {}, .token = [](TokenId) {}}, stop);
  EXPECT_EQ(generated.tokens.size(), 20U);
}

struct Param {
  fake::Gpu gpu;
  std::string encoding;
};

std::vector<Param> params() {
  std::vector<Param> params;
  for (const fake::Gpu& gpu : fake::kKinds) {
    for (const char* encoding : {"carope", "rope", "learnable", "sinusoidal", "alibi", "none"}) {
      params.push_back({gpu, encoding});
    }
  }
  return params;
}

std::string name_of(const Param& param) {
  std::string name = param.gpu.name + "_" + param.encoding;
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
}

void PrintTo(const Param& param, std::ostream* out) { *out << name_of(param); }

class OnEveryGpu : public FakeGpus, public testing::WithParamInterface<Param> {
 protected:
  void SetUp() override { fake::set_gpus({GetParam().gpu}); }
  const std::string& encoding() const { return GetParam().encoding; }
};

TEST_P(OnEveryGpu, ModelsTrain) {
  struct Shape {
    std::int64_t heads, dim, length, batch;
  };
  for (const Shape& s : {Shape{12, 64, 512, 8}, Shape{8, 64, 512, 128}, Shape{8, 128, 1024, 2},
                         Shape{5, 40, 77, 3}, Shape{16, 128, 512, 4}}) {
    for (const bool deterministic : {false, true}) {
      for (const Purpose purpose : {Purpose::kTraining, Purpose::kRecomputing}) {
        SCOPED_TRACE(fmt::format("{} heads of {}, {} x {} tokens, deterministic {}, purpose {}",
                                 s.heads, s.dim, s.batch, s.length, deterministic,
                                 static_cast<int>(purpose)));
        Training training(cuda_context(deterministic),
                          config_of(encoding(), s.heads, s.dim, s.length), s.batch, purpose);
        EXPECT_NO_THROW({
          training.issue();
          training.finish();
        });
      }
    }
  }
}

TEST_P(OnEveryGpu, StepsNeitherWaitNorAllocate) {
  Training training(cuda_context(false), config_of(encoding(), 12, 64, 512), 8, Purpose::kTraining);
  for (int step = 0; step < 2; ++step) {  // in which kernels are measured and memory is found
    training.issue();
    training.finish();
  }
  const fake::Asked before = fake::asked();
  training.issue();
  const fake::Asked after = fake::asked();
  EXPECT_GT(after.launches, before.launches);
  EXPECT_EQ(after.waits, before.waits);
  EXPECT_EQ(after.allocations, before.allocations);
  training.finish();
}

TEST_P(OnEveryGpu, ModelsWrite) {
  generate_some(cuda_context(false), config_of(encoding(), 12, 64, 1024));
  generate_some(cuda_context(false), config_of(encoding(), 5, 40, 1024));
}

INSTANTIATE_TEST_SUITE_P(Kinds, OnEveryGpu, testing::ValuesIn(params()),
                         [](const auto& info) { return name_of(info.param); });

/// Every operation, in all shapes but those that are as large as in training.
TEST_F(FakeGpus, TakeEveryOperation) {
  for (const fake::Gpu& gpu : fake::kKinds) {
    fake::set_gpus({gpu});
    Context ctx = cuda_context(false);
    for (const auto& cases : {all_test_cases(), bf16_test_cases()}) {
      for (const OpCase& op : cases) {
        for (const DType activation : {DType::kF32, DType::kBF16}) {
          if (op.bf16_only && activation == DType::kF32) {
            continue;
          }
          SCOPED_TRACE(
              fmt::format("{}: {} {} {}", gpu.name, op.op, op.variant, to_string(activation)));
          OpRun run(op, ctx, activation);
          EXPECT_NO_THROW(run.forward());
          if (op.backward) {
            EXPECT_NO_THROW(run.backward());
          }
        }
      }
    }
  }
}

TEST_F(FakeGpus, AllWorkGoesToTheDeviceThatWasAskedFor) {
  fake::set_gpus({fake::kH200, fake::kH200, fake::kRtx4060});
  for (const int device : {1, 2, 0}) {
    SCOPED_TRACE(device);
    Training training(Context::cuda(device), config_of("carope", 12, 64, 512), 2,
                      Purpose::kTraining);
    EXPECT_NO_THROW({
      training.issue();
      training.finish();
    });
    EXPECT_NO_THROW(generate_some(Context::cuda(device), config_of("carope", 12, 64, 1024)));
  }
}

/// Two processes that see both GPUs, as torchrun starts them.
TEST_F(FakeGpus, AreTrainedOnTogether) {
  if (!nccl::compiled()) {
    GTEST_SKIP() << "built without NCCL";
  }
  fake::set_gpus({fake::kH200, fake::kH200});
  write_training_data(folder_ / "data");
  const RunConfig config = read_run({{"model",
                                      {{"layers", std::int64_t{2}},
                                       {"heads", std::int64_t{2}},
                                       {"width", std::int64_t{128}},
                                       {"vocabulary", std::int64_t{64}},
                                       {"length", std::int64_t{16}}}},
                                     {"data", {{"path", (folder_ / "data").string()}}},
                                     {"train",
                                      {{"tokens", std::int64_t{6 * 256}},
                                       {"batch_tokens", std::int64_t{256}},
                                       {"micro_batch", std::int64_t{4}},
                                       {"validate_tokens", std::int64_t{256}}}}});
  const int port = Listener(0).port();
  const auto train = [&](int rank) {
    const Launch launch{.rank = rank,
                        .world_size = 2,
                        .local_rank = rank,
                        .launcher = Launcher::kTorchrun,
                        .address = "127.0.0.1",
                        .port = port,
                        .on_gpu = true};
    Context ctx = Context::cuda(gpu_of_rank(launch, 2));
    ctx.set_compute(DType::kBF16);
    const auto ranks = nccl::make_ranks(launch, ctx.device().index, std::chrono::seconds(60));
    return Trainer(ctx, *ranks, config, folder_ / "run").run({}, false);
  };
  const pid_t other = fork();
  if (other == 0) {
    const std::string said = message_of<std::exception>([&] { _exit(train(1) ? 0 : 1); });
    std::fputs(said.c_str(), stderr);
    _exit(1);
  }
  EXPECT_EQ(message_of<std::exception>([&] { EXPECT_TRUE(train(0)); }), "(nothing thrown)");
  int status = -1;
  waitpid(other, &status, 0);
  EXPECT_EQ(status, 0);
}

/// Otherwise the tests above would pass without the kernels that are only on some.
TEST_F(FakeGpus, HaveTheKernelsOfTheirKind) {
  const auto launched_on = [](const fake::Gpu& gpu) {
    fake::set_gpus({gpu});
    Training training(cuda_context(false), config_of("carope", 12, 64, 512), 8, Purpose::kTraining);
    training.issue();
    training.finish();
    generate_some(cuda_context(false), config_of("carope", 12, 64, 1024));
    return fake::launched();
  };
  const std::vector<std::string> h200 = launched_on(fake::kH200);
  const std::vector<std::string> a100 = launched_on(fake::kA100);
  for (const char* kernel : {"rotate_and_attend", "all_gradients", "8multiply", "norm_gate_rows"}) {
    EXPECT_THAT(h200, Contains(HasSubstr(kernel)));
  }
  for (const char* kernel : {"rotate_and_attend", "all_gradients", "8multiply"}) {
    EXPECT_THAT(a100, Not(Contains(HasSubstr(kernel))));
  }
}

/// Phases are kept where Hopper's attention rotates and a backward pass follows, and nowhere else.
TEST_F(FakeGpus, KeepPhasesOnlyWhereTheyAreRead) {
  const auto planned = [](const fake::Gpu& gpu, const std::string& encoding, const Options& options,
                          Purpose purpose, bool documents) {
    fake::set_gpus({gpu});
    GptConfig config = config_of(encoding, 12, 64, 512);
    config.encoding_options = options;
    const Gpt model(config, {DeviceKind::kCuda, 0}, DType::kBF16);
    const Activations a =
        model.plan({.batch = 2, .length = 512, .purpose = purpose, .documents = documents});
    EXPECT_EQ(a.plan.keeps_phases, static_cast<bool>(a.blocks[0].attention.phases));
    EXPECT_EQ(a.plan.rotated_by == RotatedBy::kOwnKernel && encoding == "carope",
              static_cast<bool>(a.blocks[0].attention.carry));
    return std::pair(a.plan.rotated_by, a.plan.keeps_phases);
  };
  using By = RotatedBy;
  const auto hopper = [&](Purpose purpose, bool documents) {
    return planned(fake::kH200, "carope", {}, purpose, documents);
  };
  EXPECT_EQ(hopper(Purpose::kTraining, false), std::pair(By::kAttention, true));
  EXPECT_EQ(hopper(Purpose::kRecomputing, false), std::pair(By::kAttention, true));
  EXPECT_EQ(hopper(Purpose::kEvaluation, false), std::pair(By::kAttention, false));
  EXPECT_EQ(hopper(Purpose::kTraining, true), std::pair(By::kOwnKernel, false));
  EXPECT_EQ(hopper(Purpose::kPrefill, false), std::pair(By::kOwnKernel, false));
  EXPECT_EQ(planned(fake::kA100, "carope", {}, Purpose::kTraining, false),
            std::pair(By::kOwnKernel, false));
  const auto rope = [&](const Options& options) {
    return planned(fake::kH200, "rope", options, Purpose::kTraining, false).first;
  };
  EXPECT_EQ(rope({}), By::kAttention);
  EXPECT_EQ(rope({{"fraction", 0.5}}), By::kAttention);
  EXPECT_EQ(rope({{"scaling", std::string("yarn")}, {"factor", 4.0}}), By::kAttention);
  EXPECT_EQ(rope({{"rotary_fraction", 0.5}}), By::kOwnKernel);
  EXPECT_EQ(planned(fake::kH200, "rope+alibi", {}, Purpose::kTraining, false).first,
            By::kOwnKernel);
}

/// A way that is not known by its name is not looked for by trials, which would add to gradients.
TEST_F(FakeGpus, MeasureNothingWhereAChoiceHasAnotherName) {
  fake::set_gpus({fake::kA100});
  const auto waits_of_step = [] {
    Training training(cuda_context(false), config_of("carope", 12, 64, 512), 8, Purpose::kTraining);
    const int before = fake::asked().waits;
    training.issue();
    const int waits = fake::asked().waits - before;
    training.finish();
    return waits;
  };
  EXPECT_GT(waits_of_step(), 0);
  const std::filesystem::path kept =
      std::filesystem::directory_iterator(folder_ / "carope")->path();
  const std::string choices = read_file(kept);
  const std::string renamed =
      std::regex_replace(choices, std::regex("(bgrad[^ ]*|dgelu[^ ]*) [a-z]+\n"), "$1 other\n");
  ASSERT_NE(renamed, choices);
  write_file(kept, renamed);
  EXPECT_EQ(waits_of_step(), 0);
}

TEST_F(FakeGpus, SayWhyCudaDoesNotStart) {
  fake::set_gpus({fake::kH200});
  EXPECT_EQ(cuda::trouble(), "");
  constexpr int kSystemNotReady = 802;
  fake::fail_to_start(kSystemNotReady);
  EXPECT_TRUE(cuda::devices().empty());
  EXPECT_THAT(cuda::trouble(), HasSubstr("system not yet initialized (the driver is for CUDA "));
  EXPECT_THAT(message_of<DeviceError>([] { Context::cuda(0); }),
              HasSubstr("0 CUDA devices are present: system not yet initialized"));
}

/// GPT-Small at 32 768 tokens, by each way of scoring, in 8 GiB.
TEST_F(FakeGpus, ScoreLongWindowsInLittleMemory) {
  constexpr std::int64_t kLength = 32768;
  fake::set_gpus({fake::kRtx4060});
  GptConfig config = config_of("carope", 12, 64, 512);
  config.layers = 12;
  DeviceModel model(config, cuda_context(false), DType::kBF16);
  const std::vector<std::uint16_t> tokens(2 * kLength + 1, 7);
  const TokenStream stream({write_bytes(folder_ / "shard.bin", shard_bytes(tokens))});
  for (const Protocol protocol : {Protocol::kWindows, Protocol::kSliding, Protocol::kLast}) {
    const Evaluation evaluation =
        measure_perplexity(model.ctx(), model.gpt(), {.stream = stream},
                           {.lengths = {512, kLength}, .protocol = protocol});
    ASSERT_EQ(evaluation.lengths.size(), 2U);
    EXPECT_EQ(evaluation.lengths[1].reason, "");
    EXPECT_GT(evaluation.lengths[1].tokens, 0);
  }
}

TEST_F(FakeGpus, SayWhatDoesNotFit) {
  fake::set_gpus({fake::kRtx4060});
  EXPECT_THAT(message_of<OutOfMemory>([] {
                Training(cuda_context(false), config_of("carope", 12, 64, 512), 2048,
                         Purpose::kTraining);
              }),
              HasSubstr("--train.micro_batch"));
}

}  // namespace
}  // namespace carope::test
