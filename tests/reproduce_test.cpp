// The main job as a user runs it: every encoding trained and scored, stopped and resumed, reported.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "core/file.h"
#include "core/random.h"
#include "data/tokenizer/tokenizer.h"
#include "eval/gate.h"
#include "experiment/experiment.h"
#include "ops/carope.h"
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
  write_file(manifest, made_of);
  fs::rename(folder_ / "moved", data);
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
  ASSERT_EQ(runs.size(), 22U);
  std::vector<std::string> labels;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    EXPECT_EQ(runs[i].config.train.seed, i < 11 ? 1U : 2U);
    Settings rest = runs[i].config.resolved;
    Settings first = runs[0].config.resolved;
    for (Settings* settings : {&rest, &first}) {
      settings->erase("position");
      settings->at("train").erase("seed");
    }
    EXPECT_EQ(rest, first);
    labels.push_back(runs[i].label);
  }
  labels.resize(11);
  EXPECT_THAT(labels, ElementsAre("carope", "rope", "learnable", "sinusoidal", "rope-2.08e7",
                                  "carope-frozen", "carope-literal", "carope-embedding",
                                  "sinusoidal-1", "none", "alibi"));
  EXPECT_EQ(runs[4].folder.string(), "x/rope-2.08e7-seed1");
  const auto option = [&](std::size_t i, const char* key) {
    return to_string(runs[i].config.resolved.at("position").at(key));
  };
  EXPECT_EQ(option(1, "base"), "10000");
  EXPECT_EQ(option(4, "base"), "20800000");
  EXPECT_EQ(option(5, "encoding") + option(5, "frozen"), "caropetrue");
  EXPECT_EQ(option(6, "encoding") + option(6, "bias") + option(6, "weight_deviation"),
            "caropefalse0.02");
  EXPECT_EQ(option(7, "encoding") + option(7, "source"), "caropeembedding");
  EXPECT_EQ(option(8, "encoding") + option(8, "scale"), "sinusoidal1");
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

/// A model whose gate can be set, on the tokens of write_training_data.
class Gate : public testing::Test {
 protected:
  Gate() {
    write_training_data(folder_ / "data");
    Settings settings;
    settings["model"] = {{"layers", std::int64_t{2}},
                         {"heads", std::int64_t{2}},
                         {"width", std::int64_t{16}},
                         {"length", std::int64_t{16}},
                         {"vocabulary", std::int64_t{50}}};
    settings["position"]["base"] = 5000.0;
    settings["data"]["path"] = (folder_ / "data").string();
    settings["train"] = {{"batch_tokens", std::int64_t{64}}, {"micro_batch", std::int64_t{4}}};
    config_ = read_run(settings);
  }

  TemporaryFolder folder_;
  RunConfig config_;
  Context ctx_ = Context::cpu(2);
};

TEST_F(Gate, IsRopesAtTheStart) {
  Gpt model(config_.model);
  model.initialise(1);
  const auto gate = measure_gate(ctx_, model, *open_validation(config_, 4), 200, nullptr);
  ASSERT_TRUE(gate);
  EXPECT_EQ(gate->tokens, 256);
  ASSERT_EQ(gate->gates.size(), 4U);
  const double f = std::pow(5000.0, -2.0 / 8.0);  // 8 channels a head
  for (const HeadFrequencies& head : gate->gates) {
    EXPECT_NEAR(head.mean, f, 1e-7);
    EXPECT_NEAR(head.base, 5000.0, 0.01);
    EXPECT_LT(head.deviation, 1e-12);
    EXPECT_EQ(head.counts[static_cast<std::size_t>(f * 40)], 256);
  }
}

TEST_F(Gate, AgreesWithTheFrequenciesOfTheRotation) {
  Gpt model(config_.model);
  model.initialise(1);
  const Philox random(5, 1);
  for (const Parameter& parameter : model.parameters()) {
    if (parameter.spec.name.find("position") != std::string::npos) {
      for (std::int64_t i = 0; i < parameter.value.size(); ++i) {
        parameter.value.f32()[i] +=
            static_cast<float>(0.3 * random.normal(static_cast<std::uint64_t>(i)));
      }
    }
  }
  const auto loader = open_validation(config_, 4);
  const auto gate = measure_gate(ctx_, model, *loader, 64, nullptr);
  ASSERT_TRUE(gate);

  TokenBatch batch;
  const Arena arena = Arena::plan(Device{}, [&](Arena& plan) { batch = loader->place(plan); });
  loader->fill(0, batch);
  Activations a = model.plan(4, 16, Purpose::kTraining);
  model.forward(ctx_, {.batch = 4, .length = 16}, batch.tokens, a);
  for (std::size_t layer = 0; layer < 2; ++layer) {
    const Tensor logits = model.gate_logits(layer, a);
    std::vector<std::uint32_t> turns(static_cast<std::size_t>(logits.size()));
    carope_frequency(ctx_, logits, Tensor::of(turns, {4, 16, 2}));
    for (std::size_t head = 0; head < 2; ++head) {
      double sum = 0.0;
      double product = 1.0;
      double highest = 0.0;
      for (std::size_t t = 0; t < 64; ++t) {
        const double f = turns[2 * t + head] * 0x1p-32;
        EXPECT_NEAR(gate->frequencies[layer][head][t], f, 1e-9);
        sum += f / 64.0;
        product *= std::pow(f, 1.0 / 64.0);
        highest = std::max(highest, f);
      }
      const HeadFrequencies& one = gate->gates[2 * layer + head];
      EXPECT_EQ(one.layer, static_cast<std::int64_t>(layer));
      EXPECT_EQ(one.head, static_cast<std::int64_t>(head));
      EXPECT_NEAR(one.mean, sum, 1e-8);
      EXPECT_NEAR(one.highest, highest, 1e-8);
      EXPECT_NEAR(one.base, std::pow(product, -4.0), 1e-4 * one.base);
      EXPECT_GT(one.deviation, 0.01);
    }
  }
  // A token of these 50 is there often enough or not; the means are those of its places.
  const auto long_look = measure_gate(ctx_, model, *loader, 700, nullptr);
  int found = 0;
  for (const HeadFrequencies& head : long_look->gates) {
    ASSERT_FALSE(head.slowest.empty());
    ASSERT_EQ(head.slowest.size(), head.fastest.size());
    EXPECT_LE(head.slowest.size(), 10U);
    EXPECT_LT(head.slowest.front().mean, head.fastest.front().mean);
    for (std::size_t i = 1; i < head.slowest.size(); ++i) {
      EXPECT_LE(head.slowest[i - 1].mean, head.slowest[i].mean);
      EXPECT_GE(head.fastest[i - 1].mean, head.fastest[i].mean);
    }
    EXPECT_GE(head.slowest.front().count, 16);
    // Layer 0 sees the token alone, so it alone explains all, and its f is the same everywhere.
    for (const auto* words : {&head.slowest, &head.fastest}) {
      for (const WordFrequency& each : *words) {
        const auto& passage = long_look->passage;
        const auto at = std::find(passage.begin(), passage.end(), each.word) - passage.begin();
        if (head.layer == 0 && at < static_cast<std::ptrdiff_t>(passage.size())) {
          EXPECT_NEAR(long_look->frequencies[0][static_cast<std::size_t>(head.head)]
                                            [static_cast<std::size_t>(at)],
                      each.mean, 1e-9);
          ++found;
        }
      }
    }
    EXPECT_NEAR(head.token_share, 1.0, head.layer == 0 ? 1e-9 : 0.9);
    EXPECT_LE(head.token_share, 1.0 + 1e-9);
  }
  EXPECT_GT(found, 4);
  ASSERT_EQ(gate->passage.size(), 64U);
  EXPECT_EQ(gate->passage[1], fmt::format(" {}", batch.tokens.data<std::int32_t>()[1]));
}

TEST_F(Gate, IsNotThereInOtherEncodings) {
  config_.model.encoding = "rope";
  config_.model.encoding_options = {};
  Gpt model(config_.model);
  model.initialise(1);
  EXPECT_FALSE(measure_gate(ctx_, model, *open_validation(config_, 4), 64, nullptr));
}

}  // namespace
}  // namespace carope::test
