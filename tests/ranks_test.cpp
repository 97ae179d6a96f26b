// Ranks that train one model together: the curve, the checkpoints and the scores are those of one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/file.h"
#include "core/random.h"
#include "support/compare.h"
#include "support/errors.h"
#include "support/folder.h"
#include "support/thread_ranks.h"
#include "support/training.h"
#include "train/trainer.h"

namespace carope::test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
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
                      {.resume = resume,
                       .sums = sums,
                       .bucket_bytes = kSmallBuckets});
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

}  // namespace
}  // namespace carope::test
