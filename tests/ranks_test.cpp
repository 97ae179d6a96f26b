// Ranks that train one model together: the curve, the checkpoints and the scores are those of one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <mutex>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/file.h"
#include "core/random.h"
#include "data/shards/shard.h"
#include "dist/mpi.h"
#include "eval/evaluation_json.h"
#include "eval/perplexity.h"
#include "support/compare.h"
#include "support/errors.h"
#include "support/folder.h"
#include "support/program.h"
#include "support/thread_ranks.h"
#include "support/training.h"
#include "train/trainer.h"

namespace carope::test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using Json = nlohmann::json;

constexpr std::size_t kSmallBuckets = 8 << 10;  // so that even a toy model has several

/// What a step or a validation said, without what depends on the clock.
struct Curve {
  std::vector<double> losses, norms, validations;
};

class Ranks : public testing::Test {
 protected:
  Ranks() { write_training_data(folder_ / "data"); }

  RunConfig config(const std::string& encoding = "carope", std::int64_t steps = 20) const {
    return read_run({{"data", {{"path", (folder_ / "data").string()}}},
                     {"position", {{"encoding", encoding}}},
                     {"model",
                      {{"vocabulary", std::int64_t{50}},
                       {"layers", std::int64_t{3}},
                       {"heads", std::int64_t{2}},
                       {"width", std::int64_t{16}},
                       {"length", std::int64_t{16}}}},
                     {"train",
                      {{"batch_tokens", std::int64_t{128}},
                       {"micro_batch", std::int64_t{1}},
                       {"tokens", 128 * steps},
                       {"learning_rate", 1e-2},
                       {"warmup_steps", std::int64_t{5}},
                       {"validate_every", std::int64_t{10}},
                       {"checkpoint_every", std::int64_t{10}},
                       {"keep", std::int64_t{10}}}}});
  }

  /// Trains in folder_ / name, until `stop_after` steps if not to the end.
  void train(const std::string& name, int ranks, const RunConfig& config, Sums sums,
             When when = When::kAtJoin, std::int64_t stop_after = 0) const {
    const bool resume = fs::exists(folder_ / name);
    std::atomic<bool> stop = false;
    TrainObserver observer;
    observer.step = [&](const StepMetrics& metrics) { stop = metrics.step == stop_after; };
    run_ranks(ranks, when, [&](Communicator& communicator) {
      Context ctx = Context::cpu(1);
      Trainer trainer(ctx, communicator, config, folder_ / name,
                      {.resume = resume, .sums = sums, .bucket_bytes = kSmallBuckets});
      // Only one rank is asked to stop.
      const std::atomic<bool> never = false;
      trainer.run(observer, communicator.rank() == 0 ? stop : never);
    });
  }

  Curve curve(const std::string& name) const {
    std::istringstream lines(read_file(folder_ / name / "metrics.jsonl"));
    Curve curve;
    for (std::string line; std::getline(lines, line);) {
      const Json json = Json::parse(line);
      if (json.contains("validation_loss")) {
        curve.validations.push_back(json["validation_loss"]);
      } else {
        curve.losses.push_back(json["loss"]);
        curve.norms.push_back(json["norm"]);
      }
    }
    return curve;
  }

  std::string saved(const std::string& name, const char* step, const char* file) const {
    return read_file(folder_ / name / "checkpoints" / step / file);
  }

  TemporaryFolder folder_;
};

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = a.size() == b.size() ? 0.0 : INFINITY;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    largest = std::max(largest, std::abs(a[i] - b[i]) / std::abs(b[i]));
  }
  return largest;
}

TEST_F(Ranks, LearnTheSameCurveWithExactSums) {
  for (const char* encoding : {"carope", "learnable"}) {
    const std::string name = encoding;
    train(name + "1", 1, config(encoding), Sums::kExact);
    const Curve one = curve(name + "1");
    ASSERT_EQ(one.losses.size(), 20U);
    ASSERT_EQ(one.validations.size(), 2U);
    EXPECT_LT(one.losses.back(), one.losses.front());
    for (const int ranks : {2, 4}) {
      train(name + std::to_string(ranks), ranks, config(encoding), Sums::kExact);
      const Curve found = curve(name + std::to_string(ranks));
      EXPECT_LT(largest_difference(found.losses, one.losses), 1e-12) << ranks;
      EXPECT_LT(largest_difference(found.norms, one.norms), 1e-12) << ranks;
      EXPECT_LT(largest_difference(found.validations, one.validations), 1e-12) << ranks;
    }
  }
}

TEST_F(Ranks, LearnTheSameCurveWithinRounding) {
  train("1", 1, config(), Sums::kFast);
  for (const int ranks : {2, 4}) {
    for (const When when : {When::kAtOnce, When::kAtJoin}) {
      const std::string name = fmt::format("{}-{}", ranks, static_cast<int>(when));
      train(name, ranks, config(), Sums::kFast, when);
      EXPECT_LT(largest_difference(curve(name).losses, curve("1").losses), 1e-5) << name;
      EXPECT_LT(largest_difference(curve(name).norms, curve("1").norms), 1e-4) << name;
    }
  }
}

TEST_F(Ranks, LeaveCheckpointsThatDoNotTellHowManyThereWere) {
  train("1", 1, config(), Sums::kExact);
  for (const int ranks : {2, 4}) {
    const std::string name = std::to_string(ranks);
    train(name, ranks, config(), Sums::kExact);
    for (const char* file : {"model.safetensors", "optimizer.safetensors", "config.toml"}) {
      for (const char* step : {"step-00000010", "step-00000020"}) {
        EXPECT_TRUE(saved(name, step, file) == saved("1", step, file)) << ranks << file << step;
      }
    }
  }
}

TEST_F(Ranks, GoOnFromACheckpointOfAnyNumber) {
  train("whole", 1, config(), Sums::kExact);
  for (const auto& [before, after] : {std::pair{4, 1}, {1, 4}, {4, 2}, {2, 8}}) {
    const std::string name = fmt::format("{}-{}", before, after);
    train(name, before, config(), Sums::kExact, When::kAtJoin, 7);
    ASSERT_EQ(find_checkpoint(folder_ / name).filename(), "step-00000007");
    train(name, after, config(), Sums::kExact);
    EXPECT_LT(largest_difference(curve(name).losses, curve("whole").losses), 1e-12) << name;
    EXPECT_TRUE(saved(name, "step-00000020", "model.safetensors") ==
                saved("whole", "step-00000020", "model.safetensors"))
        << name;
  }
}

TEST_F(Ranks, LoadExactlyWhatWasSaved) {
  train("four", 4, config(), Sums::kFast, When::kAtJoin, 7);
  for (const int ranks : {1, 3, 4}) {
    const std::string name = fmt::format("by-{}", ranks);
    run_ranks(ranks, When::kAtJoin, [&](Communicator& communicator) {
      Context ctx = Context::cpu(1);
      const Gpt model(config().model, {}, DType::kF32,
                      {.rank = communicator.rank(), .ranks = ranks, .bucket_bytes = kSmallBuckets});
      Optimizer optimizer(model.memory().own(), {}, {});
      GradientExchange exchange(communicator, model.memory(), {}, Sums::kFast);
      const Trained trained{ctx, communicator, model, optimizer, exchange};
      const RunState state = load_checkpoint(find_checkpoint(folder_ / "four"), trained);
      EXPECT_EQ(state.step, 7);
      EXPECT_EQ(optimizer.steps(), 7);
      save_checkpoint(folder_ / name, config(), trained, state);
    });
    for (const char* file : {"model.safetensors", "optimizer.safetensors", "state.json"}) {
      EXPECT_TRUE(saved(name, "step-00000007", file) == saved("four", "step-00000007", file))
          << ranks << file;
    }
  }
}

TEST_F(Ranks, AreRefusedWhereTheyCannotShareAStep) {
  const std::string said = message_of<ConfigError>([&] { train("3", 3, config(), Sums::kFast); });
  EXPECT_THAT(said, AllOf(HasSubstr("8 micro-batches of train.micro_batch = 1 rows"),
                          HasSubstr("3 ranks cannot share evenly; start 2 of them")));
  RunConfig coarse = config();
  coarse.train.micro_batch = 4;
  EXPECT_THAT(message_of<ConfigError>([&] { require_even_share(coarse, 8); }),
              HasSubstr("start 2 of them, or begin with --train.micro_batch 1"));
  require_even_share(coarse, 2);
}

TEST_F(Ranks, AreRefusedWhereTheyDoNotSeeTheSameRun) {
  train("run", 1, config("rope", 3), Sums::kFast);
  std::atomic<int> refused = 0;
  run_ranks(2, When::kAtJoin, [&](Communicator& communicator) {
    Context ctx = Context::cpu(1);
    const bool late = communicator.rank() == 1;
    const std::string said = message_of<FileError>([&] {
      Trainer(ctx, communicator, config("rope", 3), folder_ / (late ? "elsewhere" : "run"),
              {.resume = !late});
    });
    EXPECT_THAT(said,
                HasSubstr("at step 3 for rank 0, but at 0 for rank 1; all machines must see"));
    ++refused;
  });
  EXPECT_EQ(refused, 2);
}

TEST_F(Ranks, ScoreBitForBitAsOneDoes) {
  constexpr std::array kAll{Protocol::kSliding, Protocol::kLast, Protocol::kWindows};
  const TokenStream stream(find_shards(folder_ / "data", Split::kValidation));
  Gpt model(config().model);
  model.initialise(1);
  std::vector<std::string> expected;
  for (const int ranks : {1, 2, 3, 7}) {
    std::mutex mutex;
    run_ranks(ranks, When::kAtJoin, [&](Communicator& communicator) {
      Context ctx = Context::cpu(1);
      std::vector<std::string> found;
      for (const Resample resample : {Resample::kWindows, Resample::kDocuments}) {
        // Batches of many short windows and of the rest, and windows that are run in pieces.
        const EvalConfig config{
            .lengths = {16, 48, 200}, .resample = resample, .tokens_at_once = 100};
        for (const Evaluation& one :
             measure_perplexity(ctx, communicator, model,
                                {.stream = stream, .end_of_text = TokenId{7}}, config, kAll)) {
          found.push_back(to_json(one));
        }
      }
      const std::scoped_lock lock(mutex);
      expected = expected.empty() ? found : expected;
      EXPECT_EQ(found, expected) << ranks << " ranks, rank " << communicator.rank();
    });
  }
}

/// The program, started by mpirun. What OpenMPI keeps until the end is no leak of the program.
class Launched : public Ranks {
 protected:
  void SetUp() override {
    if (!mpi::compiled()) {
      GTEST_SKIP() << "built without MPI";
    }
  }

  static Ended launch(int ranks, const std::string& arguments) {
    return run(arguments,
               ranks > 1
                   ? fmt::format("ASAN_OPTIONS=detect_leaks=0 " CAROPE_MPIRUN " -np {}", ranks)
                   : "");
  }
  std::string out(const std::string& name) const {
    return " --device cpu --threads 1 --out '" + (folder_ / name).string() + "' ";
  }
};

TEST_F(Launched, TrainsAndScoresAsOneProcessDoes) {
  const std::string settings = small_training(folder_ / "data") +
                               " --train.tokens 2560 --train.micro_batch 2 --exact-sums "
                               "--train.validate_every 10 --train.checkpoint_every 0";
  for (const int ranks : {1, 2, 4}) {
    const std::string name = std::to_string(ranks);
    const Ended ended = launch(ranks, "train" + out(name) + settings);
    ASSERT_EQ(ended.status, 0) << ended.output;
    EXPECT_EQ(ended.output.find("step 20/20"), ended.output.rfind("step 20/20")) << ended.output;
    EXPECT_LT(largest_difference(curve(name).losses, curve("1").losses), 1e-12) << ranks;
    EXPECT_LT(largest_difference(curve(name).validations, curve("1").validations), 1e-12) << ranks;
    EXPECT_EQ(Json::parse(read_file(folder_ / name / "run.json"))["ranks"], ranks);
    const fs::path json = folder_ / (name + ".json");
    const Ended scored = launch(ranks, "eval --device cpu --threads 1 --json '" + json.string() +
                                           "' '" + (folder_ / "1").string() + "'");
    ASSERT_EQ(scored.status, 0) << scored.output;
    EXPECT_EQ(read_file(json), read_file(folder_ / "1.json")) << ranks;
  }
}

TEST_F(Launched, ReproducesAnExperimentAndGoesOnWithMoreProcesses) {
  const std::string settings = small_training(folder_ / "data") +
                               " --train.tokens 2560 --train.micro_batch 2 "
                               "--train.validate_tokens 512 --encodings ";
  ASSERT_EQ(launch(1, "reproduce" + out("1") + settings + "carope,rope").status, 0);
  ASSERT_EQ(launch(2, "reproduce" + out("2") + settings + "carope").status, 0);
  const Ended ended = launch(4, "reproduce" + out("2") + settings + "carope,rope");
  ASSERT_EQ(ended.status, 0) << ended.output;
  EXPECT_THAT(ended.output, AllOf(HasSubstr("[2/2] rope-seed1"), Not(HasSubstr("[1/2]"))));
  const Json one = Json::parse(read_file(folder_ / "1" / "results.json"))["runs"];
  const Json some = Json::parse(read_file(folder_ / "2" / "results.json"))["runs"];
  ASSERT_EQ(some.size(), 2U);
  for (std::size_t i = 0; i < 2; ++i) {
    for (const auto& [length, perplexity] : one[i]["perplexity"].items()) {
      EXPECT_NEAR(some[i]["perplexity"][length], perplexity.get<double>(),
                  1e-4 * perplexity.get<double>());
    }
  }
}

TEST_F(Launched, GoesOnWhereOneCommandMayBeginAndRefusesAFolderThatHoldsARunOtherwise) {
  const std::string command =
      "train" + out("a") + small_training(folder_ / "data") + " --train.tokens 256";
  ASSERT_EQ(launch(2, command + " --resume auto").status, 0);
  ASSERT_EQ(launch(1, command + " --resume auto").status, 0);
  ASSERT_EQ(curve("a").losses.size(), 2U);
  const Ended again = launch(2, command);
  EXPECT_NE(again.status, 0);
  EXPECT_THAT(again.output, AllOf(HasSubstr("carope: rank 0 on "), HasSubstr("give --resume")));
}

/// A model's memory where it computes with bf16 copies, which on the CPU no model does.
class SharedMaster {
 public:
  SharedMaster(Communicator& ranks, const std::vector<ParameterSpec>& specs)
      : memory_(specs, {}, DType::kBF16,
                {.rank = ranks.rank(), .ranks = ranks.size(), .bucket_bytes = 1000}),
        optimizer_(memory_.own(), {.clip = 5.0}, {}),
        exchange_(ranks, memory_, {}, Sums::kFast),
        ranks_(ranks) {
    for (std::size_t i = 0; i < specs.size(); ++i) {
      std::vector<float> values;
      for (std::uint64_t j = 0; j < static_cast<std::uint64_t>(specs[i].shape.size()); ++j) {
        values.push_back(static_cast<float>(Philox(1, i).normal(j)));
      }
      memory_.set(i, values);
    }
  }

  /// Gradients whose sum over any ranks is exact, eight shares of them.
  void step(Context& ctx, std::uint64_t number) {
    const int shares = 8 / ranks_.size();
    for (const Parameter& parameter : memory_.parameters()) {
      for (std::int64_t i = 0; parameter.gradient && i < parameter.gradient.size(); ++i) {
        float sum = 0.0F;
        for (int share = 0; share < shares; ++share) {
          const auto seed = static_cast<std::uint64_t>(ranks_.rank() * shares + share);
          sum += static_cast<float>(Philox(number, seed).below(64, static_cast<std::uint64_t>(i))) -
                 31.0F;
        }
        parameter.gradient.f32()[i] = sum;
      }
    }
    for (const std::int64_t block : {1, 0, -1}) {
      exchange_.finished(ctx, block, true, true);
    }
    exchange_.join(ctx);
    norms_.push_back(optimizer_.step(ctx, 1e-2, &ranks_));
    exchange_.share_weights(ctx);
  }

  /// The fp32 values, and what the model would compute with.
  std::vector<std::vector<float>> results(Context& ctx) {
    std::vector<std::vector<float>> results;
    std::vector<Tensor> own;
    for (const Parameter& parameter : memory_.own()) {
      own.push_back(parameter.value);
    }
    for (const Tensor& whole : exchange_.whole(ctx, own)) {
      results.emplace_back(whole.f32(), whole.f32() + whole.size());
    }
    for (const Parameter& parameter : memory_.parameters()) {
      std::vector<float>& values = results.emplace_back();
      for (std::int64_t i = 0; i < parameter.spec.shape.size(); ++i) {
        values.push_back(parameter.rounded ? to_float(parameter.rounded.data<Bf16>()[i])
                                           : parameter.value.f32()[i]);
      }
    }
    return results;
  }

  const ParameterMemory& memory() const { return memory_; }
  const std::vector<double>& norms() const { return norms_; }

 private:
  ParameterMemory memory_;
  Optimizer optimizer_;
  GradientExchange exchange_;
  Communicator& ranks_;
  std::vector<double> norms_;
};

TEST(SharedMasterValues, AreUpdatedAsByOneRankAndRoundedForAll) {
  const auto spec = [](const char* name, Shape shape, std::int64_t block, bool rounds,
                       bool trainable = true) {
    return ParameterSpec{.name = name,
                         .shape = shape,
                         .init = {},
                         .decay = rounds,
                         .trainable = trainable,
                         .rounds = rounds,
                         .block = block};
  };
  const std::vector<ParameterSpec> specs{
      spec("embedding", {37, 29}, -1, true), spec("a.weight", {31, 17}, 0, true),
      spec("a.gain", {17}, 0, false),        spec("a.frozen", {9, 5}, 0, true, false),
      spec("b.weight", {300}, 1, true),      spec("b.bias", {1}, 1, true),
      spec("gain", {17}, -1, false)};
  std::vector<std::vector<float>> expected;
  std::vector<double> norms;
  for (const int ranks : {1, 2, 4, 8}) {
    run_ranks(ranks, When::kAtJoin, [&](Communicator& communicator) {
      Context ctx = Context::cpu(1);
      SharedMaster model(communicator, specs);
      for (std::uint64_t step = 0; step < 3; ++step) {
        model.step(ctx, step);
      }
      for (const Parameter& parameter : model.memory().parameters()) {
        const bool shared = ranks > 1 && parameter.spec.rounds && parameter.spec.trainable;
        EXPECT_EQ(static_cast<bool>(parameter.value), !shared) << parameter.spec.name;
      }
      const auto results = model.results(ctx);
      if (ranks == 1) {
        expected = results;
        norms = model.norms();
      }
      EXPECT_TRUE(results == expected) << ranks << " ranks, rank " << communicator.rank();
      EXPECT_EQ(model.norms(), norms);
    });
  }
}

}  // namespace
}  // namespace carope::test
