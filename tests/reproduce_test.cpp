// The main job as a user runs it: every encoding trained and scored, stopped and resumed, reported.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <chrono>
#include <csignal>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "core/file.h"
#include "core/random.h"
#include "data/tokenizer/tokenizer.h"
#include "experiment/experiment.h"
#include "support/errors.h"
#include "support/folder.h"
#include "support/program.h"
#include "support/training.h"
#include "train/run_data.h"

namespace carope::test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using Json = nlohmann::json;

Json json_of(const fs::path& path) { return Json::parse(read_file(path)); }

class Reproduce : public testing::Test {
 protected:
  Reproduce() { write_training_data(folder_ / "data"); }

  std::string arguments(const std::string& experiment, const std::string& more = "") const {
    return "reproduce --threads 2 --out '" + (folder_ / experiment).string() + "' " +
           small_training(folder_ / "data") + " --train.tokens 5120 --train.validate_tokens 512 " +
           more;
  }

  /// The results without what depends on the clock.
  Json results(const std::string& experiment) const {
    Json json = json_of(folder_ / experiment / "results.json");
    for (Json& run : json["runs"]) {
      run.erase("tokens_per_second");
    }
    return json;
  }

  Json first_step(const std::string& run) const {
    const std::string metrics = read_file(folder_ / "a" / run / "metrics.jsonl");
    return Json::parse(metrics.substr(0, metrics.find('\n')));
  }

  TemporaryFolder folder_;
};

TEST_F(Reproduce, TrainsScoresAndReportsEveryEncodingOnce) {
  const Ended ended = run(arguments("a"));
  ASSERT_EQ(ended.status, 0) << ended.output;
  EXPECT_THAT(ended.output, AllOf(HasSubstr("[4/4] sinusoidal-seed1  step 40/40"),
                                  HasSubstr((folder_ / "a" / "report.html").string())));
  const Json runs = json_of(folder_ / "a" / "results.json")["runs"];
  ASSERT_EQ(runs.size(), 4U);
  std::vector<std::string> encodings;
  for (const Json& one : runs) {
    encodings.push_back(one["encoding"]);
    EXPECT_EQ(one["seed"], 1);
    EXPECT_EQ(one["train_length"], 16);
    EXPECT_GT(one["tokens_per_second"], 0.0);
    ASSERT_EQ(one["perplexity"].size(), 4U);
    const bool learnable = one["encoding"] == "learnable";
    EXPECT_LT(one["perplexity"]["16"], 40.0);  // 50 is guessing
    for (const char* length : {"32", "64", "128"}) {
      EXPECT_EQ(one["perplexity"][length].is_null(), learnable) << one;
    }
  }
  EXPECT_THAT(encodings, ElementsAre("carope", "rope", "learnable", "sinusoidal"));
  EXPECT_THAT(read_file(folder_ / "a" / "table.md"),
              AllOf(HasSubstr("carope"), HasSubstr("28.99")));
  EXPECT_THAT(read_file(folder_ / "a" / "report.html"),
              AllOf(HasSubstr("<svg"), HasSubstr("carope")));
  EXPECT_TRUE(fs::exists(folder_ / "a" / "carope-seed1" / "gate.json"));
  EXPECT_FALSE(fs::exists(folder_ / "a" / "rope-seed1" / "gate.json"));
  // Of 699 targets, those that a run validates on.
  EXPECT_EQ(json_of(folder_ / "a" / "rope-seed1" / "evaluation.json")["tokens"], 512);
  // The encodings start from the same weights on the same tokens, and CARoPE starts as RoPE.
  EXPECT_NEAR(first_step("carope-seed1")["loss"], first_step("rope-seed1")["loss"].get<double>(),
              1e-6);

  const Json before = json_of(folder_ / "a" / "results.json");
  const Ended again = run(arguments("a"));
  ASSERT_EQ(again.status, 0) << again.output;
  EXPECT_THAT(again.output, Not(HasSubstr("step ")));
  EXPECT_EQ(json_of(folder_ / "a" / "results.json"), before);

  // More encodings and seeds join those that are there.
  const Ended more = run(arguments("a", "--encodings rope,carope-frozen --seeds 2"));
  ASSERT_EQ(more.status, 0) << more.output;
  EXPECT_THAT(more.output,
              AllOf(HasSubstr("[2/4] carope-frozen-seed1"), HasSubstr("[3/4] rope-seed2"),
                    HasSubstr("[4/4] carope-frozen-seed2"), Not(HasSubstr("rope-seed1  step"))));
  EXPECT_EQ(results("a")["runs"].size(), 7U);
}

TEST_F(Reproduce, MakesAScoreThatIsNoneAgain) {
  const std::string rope = "--encodings rope --lengths 16";
  ASSERT_EQ(run(arguments("a", rope)).status, 0);
  const Json before = results("a");
  const fs::path score = folder_ / "a" / "rope-seed1" / "evaluation.json";
  for (const char* other : {R"({"step": "x"})", R"({"step": 40, "resample": 1})", "[]", "{"}) {
    write_bytes(score, other);
    const Ended again = run(arguments("a", rope));
    EXPECT_EQ(again.status, 0) << other << again.output;
    EXPECT_EQ(results("a"), before) << other;
  }
  for (const char* other : {R"({"runs": [5]})", "[]", "{"}) {
    write_bytes(folder_ / "a" / "experiment.json", other);
    EXPECT_THAT(run(arguments("a", rope)).output,
                HasSubstr("experiment.json is not readable; remove it"));
  }
}

TEST_F(Reproduce, GoesOnWhereItWasKilled) {
  const std::string two = "--encodings carope,sinusoidal";
  ASSERT_EQ(run(arguments("whole", two)).status, 0);
  const Philox random(static_cast<std::uint64_t>(getpid()), 2);
  int kills = 0;
  for (std::uint64_t attempt = 0; attempt < 200; ++attempt) {
    const pid_t child = start(arguments("killed", two));
    // Later and later, so that the end is reached.
    std::this_thread::sleep_for(std::chrono::milliseconds(
        50 + random.below(static_cast<std::uint32_t>(100 * (attempt + 1)), attempt)));
    kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    if (WIFEXITED(status)) {
      ASSERT_EQ(WEXITSTATUS(status), 0);
      break;
    }
    ++kills;
  }
  EXPECT_GE(kills, 1);
  EXPECT_EQ(results("killed"), results("whole"));
}

TEST_F(Reproduce, ScoresAtOtherLengthsAndByOtherProtocolsWithoutTrainingAgain) {
  const std::string one = "--encodings carope ";
  ASSERT_EQ(run(arguments("a", one)).status, 0);
  const std::string more = one + "--lengths 16,256 --all-protocols --gate-tokens 64";
  const Ended ended = run(arguments("a", more));
  ASSERT_EQ(ended.status, 0) << ended.output;
  EXPECT_THAT(ended.output, Not(HasSubstr("step 1/40")));
  const fs::path trained = folder_ / "a" / "carope-seed1";
  for (const auto& [file, protocol] :
       std::map<std::string, std::string>{{"evaluation.json", "windows"},
                                          {"evaluation-sliding.json", "sliding"},
                                          {"evaluation-last.json", "last"}}) {
    const Json json = json_of(trained / file);
    EXPECT_EQ(json["protocol"], protocol);
    EXPECT_EQ(json["step"], 40);
    EXPECT_EQ(json["checkpoint"], "carope-seed1/checkpoints/step-00000040");
    ASSERT_EQ(json["lengths"].size(), 2U);
    const Json& last = json["lengths"][1];
    EXPECT_EQ(last["length"], 256);
    double losses = 0.0;
    for (const Json& loss : last["unit_losses"]) {
      losses += loss.get<double>();
    }
    EXPECT_EQ(last["unit_tokens"].size(), last["units"]);
    EXPECT_NEAR(losses / last["tokens"].get<double>(), last["loss"].get<double>(), 1e-5);
  }
  const Json described = json_of(trained / "run.json");
  EXPECT_THAT(described["device"], HasSubstr("CPU, 2 threads"));
  EXPECT_GT(described["memory_bytes"], 4 * 50 * 16 * 4);  // the embedding with all that AdamW keeps

  // Only what has no checkpoint any more cannot be scored again, and is not trained again for it.
  fs::remove_all(trained / "checkpoints");
  EXPECT_EQ(run(arguments("a", more)).status, 0);
  const Ended refused = run(arguments("a", one + "--lengths 16,128"));
  EXPECT_EQ(refused.status, 1);
  EXPECT_THAT(refused.output,
              AllOf(HasSubstr("carope-seed1 was trained"), HasSubstr("has no checkpoint")));
  // What broke off while it was scored, and came here without its weights, is trained again.
  fs::remove(trained / "evaluation.json");
  const Ended again = run(arguments("a", more));
  EXPECT_EQ(again.status, 0) << again.output;
  EXPECT_THAT(again.output, HasSubstr("step 40/40"));
  EXPECT_THAT(run(arguments("b", one + "--resample documents")).output,
              AllOf(HasSubstr("manifest.json"), Not(HasSubstr("step "))));
}

TEST_F(Reproduce, SavesAndReturns130WhenInterrupted) {
  const std::string endless = arguments("a", "--train.tokens 12800000 --train.checkpoint_every 0");
  const pid_t child = start(endless);
  const fs::path metrics = folder_ / "a" / "carope-seed1" / "metrics.jsonl";
  while (!fs::exists(metrics) || fs::file_size(metrics) == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  kill(child, SIGINT);
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 130);
  EXPECT_EQ(list_checkpoints(folder_ / "a" / "carope-seed1").size(), 1U);
}

TEST_F(Reproduce, MakesTheDemonstrationsDataOnce) {
  const std::string command =
      "reproduce --preset demo --encodings none --out '" + (folder_ / "a").string() +
      "' --model.width 16 --model.heads 2 --model.layers 1 --model.length 8 "
      "--train.tokens 2048 --train.batch_tokens 1024 --train.micro_batch 32 "
      "--train.validate_tokens 1024";
  const Ended ended = run(command);
  ASSERT_EQ(ended.status, 0) << ended.output;
  const fs::path data = folder_ / "a" / "data";
  EXPECT_EQ(Tokenizer::load(data / "tokenizer.json").size(), 1024);
  const auto made = fs::last_write_time(data / "shards" / "manifest.json");
  ASSERT_EQ(run(command + " --seeds 2").status, 0);
  EXPECT_EQ(fs::last_write_time(data / "shards" / "manifest.json"), made);
  EXPECT_EQ(results("a")["runs"].size(), 2U);
  EXPECT_THAT(run(command + " --train.seed 7 --model.vocabulary 600").output,
              HasSubstr("model.vocabulary = 600 is not what"));
  // Intervals of another kind are scored again.
  ASSERT_EQ(run(command + " --resample documents").status, 0);
  EXPECT_EQ(json_of(folder_ / "a" / "none-seed1" / "evaluation.json")["resample"], "documents");
  // The same data may lie elsewhere, as on another machine, but not other data.
  fs::rename(data, folder_ / "moved");
  const std::string moved = command + " --resample documents --data.path '" +
                            (folder_ / "moved" / "shards").string() + "'";
  const Ended elsewhere = run(moved);
  EXPECT_EQ(elsewhere.status, 0) << elsewhere.output;
  EXPECT_THAT(elsewhere.output, Not(HasSubstr("step ")));
  const fs::path manifest = folder_ / "moved" / "shards" / "manifest.json";
  const std::string made_of = read_file(manifest);
  write_file(manifest, made_of + "\n");
  EXPECT_THAT(run(moved).output, AllOf(HasSubstr("data.path = "), HasSubstr("is not what")));
  fs::rename(folder_ / "moved", data);
  EXPECT_THAT(run(command + " --resample documents").output,
              AllOf(HasSubstr("is not what"), HasSubstr("manifest.json is another one")));
  write_file(data / "shards" / "manifest.json", made_of);
  fs::remove_all(folder_ / "a" / "none-seed1");
  fs::remove_all(folder_ / "a" / "none-seed2");
  EXPECT_THAT(run(command + " --train.tokens 204800").output,
              HasSubstr("was made for a smaller experiment"));
}

TEST_F(Reproduce, RefusesWhatItCannotDo) {
  const auto refusal = [&](const std::string& more) {
    const Ended ended = run(arguments("a", more));
    EXPECT_NE(ended.status, 0) << more;
    return ended.output;
  };
  EXPECT_THAT(refusal("--position.encoding rope"), HasSubstr("--encodings"));
  EXPECT_THAT(refusal("--encodings rope,carop"),
              AllOf(HasSubstr("unknown encoding 'carop'"), HasSubstr("did you mean 'carope'")));
  EXPECT_THAT(refusal("--seeds 0"), HasSubstr("--seeds"));
  EXPECT_THAT(refusal("--seeds 2000000000"), HasSubstr("give 1 to 1000"));
  EXPECT_THAT(refusal("--preset huge"), HasSubstr("--preset"));
  EXPECT_THAT(refusal("--train.token 5"), HasSubstr("did you mean 'tokens'?"));
  EXPECT_THAT(run("reproduce --preset tiny --out '" + (folder_ / "t").string() + "'").output,
              AllOf(HasSubstr("data/fineweb-edu"), HasSubstr("carope data prepare")));
  EXPECT_FALSE(fs::exists(folder_ / "a"));

  EXPECT_THAT(refusal("--train.validate_tokens 127"),
              AllOf(HasSubstr("one window of 128 tokens"), Not(HasSubstr("step "))));
  EXPECT_THAT(refusal("--model.length 128 --train.batch_tokens 512 --train.validate_tokens 4096"),
              AllOf(HasSubstr("700 tokens for validation, but 1025"), Not(HasSubstr("step "))));
}

TEST_F(Reproduce, MixesNoOtherSettingsIntoAnExperiment) {
  const auto again = [&](const std::string& more) { return run(arguments("a", more)).output; };
  ASSERT_EQ(run(arguments("a", "--encodings none")).status, 0);
  fs::remove_all(folder_ / "a" / "none-seed1" / "checkpoints");  // as one does to save space
  EXPECT_THAT(again("--encodings none"), Not(HasSubstr("is not what")));
  EXPECT_THAT(again("--encodings none --train.learning_rate 0.02"),
              HasSubstr("train.learning_rate = 0.02 is not what"));
  // Not in other encodings or seeds either, with which these would be compared.
  EXPECT_THAT(again("--encodings rope --model.layers 1"),
              HasSubstr("model.layers = 1 is not what"));
  EXPECT_THAT(again("--encodings none --train.seed 5 --model.layers 1"),
              HasSubstr("model.layers = 1 is not what"));
  // The same folder from another place is the same experiment.
  const Ended elsewhere =
      run("reproduce --threads 2 --out a " + small_training("data") +
              " --train.tokens 5120 --train.validate_tokens 512 --encodings none",
          "cd '" + folder_.path().string() + "' &&");
  EXPECT_EQ(elsewhere.status, 0) << elsewhere.output;
}

TEST_F(Reproduce, SharesNoFolderWithARun) {
  const auto train = [&](const std::string& folder, const std::string& more = "") {
    return run("train --out '" + (folder_ / folder).string() + "' " +
               small_training(folder_ / "data") + " --train.tokens 1280 " + more);
  };
  const auto refusal = [](const Ended& ended) {
    EXPECT_EQ(ended.status, 1);
    EXPECT_THAT(ended.output, Not(HasSubstr("step ")));
    return ended.output;
  };
  ASSERT_EQ(train("run").status, 0);
  EXPECT_THAT(refusal(run(arguments("run", "--encodings none"))),
              AllOf(HasSubstr("run holds a run already"), HasSubstr("another folder")));
  EXPECT_THAT(refusal(run(arguments("run/checkpoints/step-00000010", "--encodings none"))),
              HasSubstr("is a checkpoint"));
  fs::remove_all(folder_ / "run" / "checkpoints");  // as where it was stopped before the first
  EXPECT_THAT(refusal(run(arguments("run", "--encodings none"))), HasSubstr("holds a run already"));
  EXPECT_FALSE(fs::exists(folder_ / "run" / "experiment.json"));

  ASSERT_EQ(run(arguments("a", "--encodings none")).status, 0);
  for (const char* resume : {"", "--resume", "--resume auto"}) {
    EXPECT_THAT(
        refusal(train("a", resume)),
        AllOf(HasSubstr("a holds the runs of an experiment already"), HasSubstr("another folder")));
  }
  EXPECT_FALSE(fs::exists(folder_ / "a" / "run.json"));
}

TEST_F(Reproduce, GoesOnToOtherEncodingsWhenOneCannotBeTrained) {
  const Ended ended =
      run(arguments("a", "--encodings none,rope --train.learning_rate 1e9 --optimizer.clip 0"));
  EXPECT_EQ(ended.status, 1);
  EXPECT_THAT(ended.output, AllOf(HasSubstr("not every run could be trained"),
                                  HasSubstr("\nnone: step "), HasSubstr("\nrope: step ")));
}

TEST_F(Reproduce, TakesNoFolderForItsPreset) {
  fs::create_directories(folder_ / "demo");
  const Ended ended = run("config show --config demo", "cd '" + folder_.path().string() + "' &&");
  EXPECT_EQ(ended.status, 0);
  EXPECT_THAT(ended.output, HasSubstr("vocabulary = 1024"));
}

TEST_F(Reproduce, InspectsWhatTheGateLearned) {
  ASSERT_EQ(run(arguments("a", "--encodings carope,rope")).status, 0);
  const std::string trained = (folder_ / "a" / "carope-seed1").string();
  const Ended ended = run("inspect '" + trained + "'");
  ASSERT_EQ(ended.status, 0) << ended.output;
  EXPECT_THAT(ended.output,
              AllOf(HasSubstr("carope, 2 layers, 2 heads, width 16"), HasSubstr("embedding"),
                    HasSubstr("[50, 16]"), HasSubstr("parameters in all")));
  const Json gate = json_of(folder_ / "a" / "carope-seed1" / "gate.json");
  ASSERT_EQ(gate["gates"].size(), 4U);
  for (const Json& head : gate["gates"]) {
    EXPECT_THAT(ended.output, HasSubstr(fmt::format("{:.4g}\n", head["base"].get<double>())));
  }
  EXPECT_THAT(run("inspect --words 2 '" + trained + "'").output,
              AllOf(HasSubstr("layer 1 head 1, "), HasSubstr("\n  fast: \" ")));
  EXPECT_THAT(run("inspect '" + (folder_ / "a" / "rope-seed1").string() + "'").output,
              HasSubstr("'rope' has no gate"));
  const Ended elsewhere = run("inspect --data /nowhere '" + trained + "'");
  EXPECT_EQ(elsewhere.status, 1);
  EXPECT_THAT(elsewhere.output, HasSubstr("/nowhere does not exist"));
  fs::rename(folder_ / "data", folder_ / "moved");
  EXPECT_THAT(run("inspect '" + trained + "'").output, HasSubstr("is not there; name a folder"));
  EXPECT_THAT(run("inspect '" + trained + "' --data '" + (folder_ / "moved").string() + "'").output,
              HasSubstr("The gate over "));
  EXPECT_NE(run("inspect '" + (folder_ / "data").string() + "'").status, 0);
}

TEST(Variants, DifferInTheirEncodingAlone) {
  ExperimentConfig config{.variants = paper_variants(), .seeds = 2, .folder = "x"};
  const auto controls = control_variants();
  config.variants.insert(config.variants.end(), controls.begin(), controls.end());
  const auto runs = plan_runs(config);
  ASSERT_EQ(runs.size(), 24U);
  std::vector<std::string> labels;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    EXPECT_EQ(runs[i].config.train.seed, i < 12 ? 1U : 2U);
    Settings rest = runs[i].config.resolved;
    Settings first = runs[0].config.resolved;
    for (Settings* settings : {&rest, &first}) {
      settings->erase("position");
      settings->at("train").erase("seed");
    }
    EXPECT_EQ(rest, first);
    labels.push_back(runs[i].label);
  }
  labels.resize(12);
  EXPECT_THAT(labels, ElementsAre("carope", "rope", "learnable", "sinusoidal", "rope-2.08e7",
                                  "carope-frozen", "carope-spread", "carope-literal",
                                  "carope-embedding", "sinusoidal-1", "none", "alibi"));
  EXPECT_EQ(runs[4].folder.string(), "x/rope-2.08e7-seed1");
  const auto option = [&](std::size_t i, const char* key) {
    return to_string(runs[i].config.resolved.at("position").at(key));
  };
  EXPECT_EQ(option(1, "base"), "10000");
  EXPECT_EQ(option(4, "base"), "20800000");
  EXPECT_EQ(option(5, "encoding") + option(5, "frozen"), "caropetrue");
  EXPECT_EQ(option(6, "frozen") + option(6, "bias_deviation"), "true0.6");
  EXPECT_EQ(option(7, "encoding") + option(7, "bias") + option(7, "weight_deviation"),
            "caropefalse0.02");
  EXPECT_EQ(option(8, "encoding") + option(8, "source"), "caropeembedding");
  EXPECT_EQ(option(9, "encoding") + option(9, "scale"), "sinusoidal1");
}

TEST(Variants, SeeTheSameTokensInTheSameOrderWithinASeed) {
  const TemporaryFolder folder;
  write_training_data(folder / "data");
  ExperimentConfig config{.variants = known_variants(), .seeds = 2, .folder = "x"};
  config.settings["model"] = {{"length", std::int64_t{16}}, {"vocabulary", std::int64_t{50}}};
  config.settings["data"]["path"] = (folder / "data").string();
  config.settings["data"]["order"] = std::string("shuffled");
  config.settings["train"] = {{"batch_tokens", std::int64_t{256}},
                              {"micro_batch", std::int64_t{8}}};
  std::map<std::uint64_t, std::set<std::vector<std::int32_t>>> orders;  // by seed
  for (const PlannedRun& planned : plan_runs(config)) {
    const auto loader = open_training(planned.config, 0, *make_alone());
    std::vector<std::int32_t> seen;
    for (int step = 0; step < 30; ++step) {  // of about 20 an epoch
      const TokenBatch& batch = loader->next();
      const auto* tokens = batch.tokens.data<std::int32_t>();
      seen.insert(seen.end(), tokens, tokens + batch.tokens.size());
    }
    orders[planned.config.train.seed].insert(seen);
  }
  ASSERT_EQ(orders.size(), 2U);
  EXPECT_EQ(orders[1].size(), 1U);
  EXPECT_EQ(orders[2].size(), 1U);
  EXPECT_NE(orders[1], orders[2]);
}

}  // namespace
}  // namespace carope::test
