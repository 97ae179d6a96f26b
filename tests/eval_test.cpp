// Perplexity against the simplest way to get it, and the command.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "core/bootstrap.h"
#include "core/file.h"
#include "data/shards/manifest.h"
#include "eval/checkpoint_evaluation.h"
#include "eval/evaluation_json.h"
#include "eval/perplexity.h"
#include "support/compare.h"
#include "support/folder.h"
#include "support/naive_evaluation.h"
#include "support/program.h"
#include "support/shard_files.h"
#include "support/training.h"
#include "train/checkpoint.h"

namespace carope::test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using Json = nlohmann::json;

class Perplexity : public testing::Test {
 protected:
  static constexpr std::int64_t kTokens = 203;

  static Gpt model(const std::string& encoding) {
    Gpt model({.layers = 2,
               .heads = 2,
               .width = 16,
               .vocabulary = 50,
               .length = 16,
               .encoding = encoding});
    model.initialise(1);
    perturb(model, 0.2);
    return model;
  }

  Evaluation measure(Gpt& model, const EvalConfig& config, bool documents = false) {
    return measure_perplexity(
        ctx_, model, {.stream = stream_, .end_of_text = kEndOfText, .documents = documents},
        config);
  }

  /// Compares every sum of an evaluation with the naive one.
  static void expect_equal(const Evaluation& got, Naive& naive, double tolerance) {
    const EvalConfig& config = got.config;
    const std::int64_t longest = *std::max_element(config.lengths.begin(), config.lengths.end());
    EXPECT_EQ(got.tokens, (kTokens - 1) / longest * longest);
    ASSERT_EQ(got.lengths.size(), config.lengths.size());
    for (const LengthScore& score : got.lengths) {
      std::map<std::int64_t, LossSum> units, positions;
      LossSum all;
      for (std::int64_t i = 0; i < got.tokens; ++i) {
        if (const auto target = count_target(config, score.length, got.tokens, i)) {
          const double loss = naive.loss(*target);
          const std::int64_t unit =
              config.resample == Resample::kDocuments ? naive.document_of(i) : target->begin;
          for (LossSum* sum : {&all, &units[unit], &positions[target->position]}) {
            sum->loss += loss;
            ++sum->tokens;
          }
        }
      }
      EXPECT_EQ(score.reason, "");
      EXPECT_EQ(score.tokens, all.tokens);
      EXPECT_NEAR(score.loss, all.loss / static_cast<double>(all.tokens), tolerance);
      ASSERT_EQ(score.units.size(), units.size());
      auto unit = score.units.begin();
      for (const auto& [begin, sum] : units) {
        EXPECT_EQ(unit->tokens, sum.tokens) << begin;
        EXPECT_NEAR((unit++)->loss, sum.loss, 20.0 * tolerance) << begin;
      }
      ASSERT_EQ(score.positions.size(), positions.size());  // config.positions is long enough
      auto point = score.positions.begin();
      for (const auto& [position, sum] : positions) {
        EXPECT_EQ(point->position, position);
        EXPECT_EQ(point->tokens, sum.tokens) << position;
        EXPECT_NEAR((point++)->loss, sum.loss / static_cast<double>(sum.tokens), 5.0 * tolerance);
      }
    }
  }

  Context ctx_ = Context::cpu(2);
  TemporaryFolder folder_;
  std::vector<TokenId> tokens_ = random_tokens(kTokens);
  TokenStream stream_{
      {write_bytes(folder_ / "x_val_000000.bin", shard_bytes({tokens_.begin(), tokens_.end()}))}};
};

const std::vector<EvalConfig> kProtocols{
    {.protocol = Protocol::kWindows},
    {.protocol = Protocol::kSliding},
    {.protocol = Protocol::kSliding, .stride = 5},
    {.protocol = Protocol::kSliding, .stride = 7, .resample = Resample::kDocuments},
    {.protocol = Protocol::kLast, .last = 3},
    {.protocol = Protocol::kLast, .last = 7, .resample = Resample::kDocuments}};

TEST_F(Perplexity, IsThatOfWholeWindowsInAnyPiecesAndRows) {
  for (const std::string encoding : {"carope", "alibi", "sinusoidal"}) {
    Gpt model = this->model(encoding);
    Naive naive(model, tokens_);
    for (EvalConfig config : kProtocols) {
      config.lengths = {7, 24, 13};
      for (const std::int64_t at_once : {1, 5, 26, 100'000}) {
        SCOPED_TRACE(fmt::format("{} {} {}", encoding, to_string(config.protocol), at_once));
        config.tokens_at_once = at_once;
        expect_equal(measure(model, config), naive, tolerance(DType::kF32).loss);
      }
    }
  }
}

TEST_F(Perplexity, IsTheSameWhenSeveralProtocolsShareTheirWindows) {
  constexpr std::array kAll{Protocol::kLast, Protocol::kWindows, Protocol::kSliding};
  Gpt model = this->model("carope");
  Naive naive(model, tokens_);
  for (const Resample resample : {Resample::kWindows, Resample::kDocuments}) {
    // Sliding windows of 8 and 24 contain those that lie side by side; those of 7, whose stride is
    // 3, share but few.
    const EvalConfig config{.lengths = {8, 24, 7}, .resample = resample, .tokens_at_once = 48};
    const auto alone = make_alone();
    const std::vector<Evaluation> all = measure_perplexity(
        ctx_, *alone, model, {.stream = stream_, .end_of_text = kEndOfText}, config, kAll);
    ASSERT_EQ(all.size(), 3U);
    EXPECT_EQ(all[0].config.last, 3);  // half of the shortest
    for (std::size_t i = 0; i < all.size(); ++i) {
      SCOPED_TRACE(to_string(kAll[i]));
      EXPECT_EQ(all[i].config.protocol, kAll[i]);
      expect_equal(all[i], naive, tolerance(DType::kF32).loss);
    }
  }
}

TEST_F(Perplexity, LosesNothingToRoundingWhenItSums) {
  Gpt model = this->model("carope");
  Naive naive(model, tokens_);
  for (EvalConfig config : kProtocols) {
    config.lengths = {24};
    config.tokens_at_once = 24;  // one window at a time, as the naive way has it: the same bits
    expect_equal(measure(model, config), naive, 1e-13);
  }
}

TEST_F(Perplexity, KeepsAttentionWithinDocumentsWhereTheModelDid) {
  Gpt model = this->model("carope");
  Naive naive(model, tokens_, true);
  for (EvalConfig config : kProtocols) {
    config.lengths = {40, 7};
    config.tokens_at_once = 30;
    expect_equal(measure(model, config, true), naive, tolerance(DType::kF32).loss);
  }
  const EvalConfig config{.lengths = {40}};
  EXPECT_GT(std::abs(measure(model, config).lengths[0].loss -
                     measure(model, config, true).lengths[0].loss),
            1e-3);
}

TEST_F(Perplexity, ScoresTheSameTargetsAtEveryLength) {
  Gpt none = model("none");
  const Evaluation got = measure(none, {.lengths = {1, 7, 13, 24}, .tokens = 100});
  EXPECT_EQ(got.tokens, 96);
  for (const LengthScore& score : got.lengths) {
    EXPECT_EQ(score.tokens, 96) << score.length;
  }
}

TEST_F(Perplexity, FindsDocumentsFarIntoTheStream) {
  constexpr std::int64_t kFar = (1 << 20) + 10;  // documents are looked for 2^20 tokens at a time
  std::vector<std::uint16_t> tokens(kFar + 1000, 1);
  tokens[100] = tokens[kFar] = kEndOfText;
  const TokenStream stream({write_bytes(folder_ / "x_val_000001.bin", shard_bytes(tokens))});
  Gpt model(
      {.layers = 1, .heads = 1, .width = 2, .vocabulary = 2, .length = 16, .encoding = "none"});
  model.initialise(1);
  const EvalConfig config{.lengths = {16}, .resample = Resample::kDocuments};
  const Evaluation got =
      measure_perplexity(ctx_, model, {.stream = stream, .end_of_text = kEndOfText}, config);
  std::vector<std::int64_t> counts;
  for (const LossSum& unit : got.lengths.front().units) {
    counts.push_back(unit.tokens);
  }
  EXPECT_THAT(counts, testing::ElementsAre(100, kFar - 100, got.tokens - kFar));
}

TEST_F(Perplexity, GathersThePositionsOfALongWindow) {
  Gpt none = model("none");
  const LengthScore score = measure(none, {.lengths = {100}, .positions = 8}).lengths.front();
  std::vector<std::int64_t> first, counts;
  for (const PositionLoss& point : score.positions) {
    first.push_back(point.position);
    counts.push_back(point.tokens);
  }
  EXPECT_THAT(first, testing::ElementsAre(0, 13, 25, 38, 50, 63, 75, 88));
  EXPECT_THAT(counts, testing::ElementsAre(26, 24, 26, 24, 26, 24, 26, 24));
}

TEST_F(Perplexity, HasNoValueWhereWeightsAreBroken) {
  Gpt broken = model("rope");
  broken.parameter("embedding").value.f32()[7] = std::nanf("");
  const Evaluation got = measure(broken, {.lengths = {16}});
  EXPECT_THAT(got.lengths.front().reason, HasSubstr("not finite"));
  EXPECT_TRUE(Json::parse(to_json(got))["lengths"][0]["loss"].is_null());
}

class EvalCommand : public testing::Test {
 protected:
  EvalCommand() { write_training_data(folder_ / "data"); }

  std::string path(const std::string& name) const {
    return fmt::format("'{}'", (folder_ / name).string());
  }

  /// A run that has learnt nothing.
  fs::path save_run(const std::string& name, const Settings& changes) const {
    Settings settings{{"data", {{"path", (folder_ / "data").string()}}},
                      {"position", {{"encoding", std::string("carope")}}},
                      {"model",
                       {{"layers", std::int64_t{1}},
                        {"heads", std::int64_t{1}},
                        {"width", std::int64_t{16}},
                        {"vocabulary", std::int64_t{50}},
                        {"length", std::int64_t{16}}}}};
    for (const auto& [section, options] : changes) {
      for (const auto& [key, value] : options) {
        settings[section][key] = value;
      }
    }
    const RunConfig config = read_run(settings);
    Gpt model(config.model);
    model.initialise(1);
    Context ctx = Context::cpu(1);
    const auto alone = make_alone();
    Optimizer optimizer(model.parameters(), {});
    GradientExchange exchange(*alone, model.memory(), ctx.device(), Sums::kFast);
    return save_checkpoint(folder_ / name, config, {ctx, *alone, model, optimizer, exchange},
                           {.step = 7});
  }

  void expect_refusal(const std::string& arguments, const testing::Matcher<std::string>& said) {
    const Ended ended = run("eval " + arguments);
    EXPECT_NE(ended.status, 0) << arguments;
    EXPECT_THAT(ended.output, said) << arguments;
    EXPECT_THAT(ended.output, Not(HasSubstr("Perplexity on"))) << arguments;
  }

  TemporaryFolder folder_;
};

TEST_F(EvalCommand, ScoresWhatWasTrained) {
  for (const std::string encoding : {"rope", "learnable"}) {
    const Ended trained =
        run("train --out " + path(encoding) + " " + small_training(folder_ / "data") +
            " --position.encoding " + encoding + " --train.tokens 6400");
    ASSERT_EQ(trained.status, 0) << trained.output;
  }
  const Ended one = run("eval " + path("rope") + " --json " + path("one.json"));
  ASSERT_EQ(one.status, 0) << one.output;
  EXPECT_THAT(one.output, AllOf(HasSubstr("Perplexity on 640 tokens"), HasSubstr("@16"),
                                HasSubstr("@64"), Not(HasSubstr("Loss minus"))));
  const Json json = Json::parse(read_file(folder_ / "one.json"));
  EXPECT_EQ(json["checkpoint"], (folder_ / "rope" / "checkpoints" / "step-00000050").string());
  EXPECT_EQ(json["step"], 50);
  EXPECT_EQ(json["protocol"], "windows");
  EXPECT_EQ(json["resample"], "windows");
  EXPECT_EQ(json["tokens"], 640);
  ASSERT_EQ(json["lengths"].size(), 3U);
  const Json& at_16 = json["lengths"][0];
  EXPECT_EQ(at_16["length"], 16);
  EXPECT_EQ(at_16["tokens"], 640);
  EXPECT_EQ(at_16["positions"].size(), 16U);
  EXPECT_EQ(at_16["positions"][3]["position"], 3);
  EXPECT_EQ(at_16["positions"][3]["tokens"], 40);
  EXPECT_DOUBLE_EQ(at_16["perplexity"], std::exp(at_16["loss"].get<double>()));
  std::vector<LossSum> units;
  for (std::size_t i = 0; i < 40; ++i) {
    units.push_back({at_16["unit_losses"][i], at_16["unit_tokens"][i]});
  }
  const Interval interval = mean_interval(units, {});
  EXPECT_NEAR(at_16["low"], std::exp(interval.low), 1e-4);
  EXPECT_NEAR(at_16["high"], std::exp(interval.high), 1e-4);
  EXPECT_GT(interval.high - interval.low, 0.01);
  // The trainer validated on the same windows when it ended.
  const std::string metrics = read_file(folder_ / "rope" / "metrics.jsonl");
  const Json last = Json::parse(metrics.substr(metrics.rfind('{')));
  EXPECT_NEAR(at_16["loss"], last["validation_loss"], 1e-5);

  const Ended both = run("eval " + path("rope") + " " + path("learnable") + " " + path("rope") +
                         " --lengths 16,64 --json " + path("both.json"));
  ASSERT_EQ(both.status, 0) << both.output;
  EXPECT_THAT(
      both.output,
      AllOf(HasSubstr("learnable @64: past the 16 positions of the encoding 'learnable'"),
            HasSubstr("Loss minus that of"), HasSubstr("+0.0000 [+0.0000, +0.0000] (x1.0000)")));
  EXPECT_THAT(both.output, testing::ContainsRegex("learnable +50 +[0-9.]+ \\[[0-9., ]+\\] +-\n"));
  const Json array = Json::parse(read_file(folder_ / "both.json"));
  ASSERT_EQ(array.size(), 3U);
  EXPECT_EQ(array[0]["lengths"][0], at_16);
  const double more = array[1]["lengths"][0]["loss"].get<double>() - at_16["loss"].get<double>();
  EXPECT_GT(std::abs(more), 1e-4);
  EXPECT_THAT(both.output,
              testing::ContainsRegex(fmt::format("learnable +[{}]{:.4f} \\[",
                                                 more > 0.0 ? "+" : "-", std::abs(more))));
  EXPECT_THAT(both.output, HasSubstr(fmt::format("] (x{:.4f})", std::exp(more))));
  EXPECT_EQ(array[1]["lengths"][1], Json::parse(R"({"length": 64, "loss": null, "perplexity": null,
                            "reason": "past the 16 positions of the encoding 'learnable'"})"));
}

TEST_F(EvalCommand, ScalesTheRopeOfATrainedModel) {
  const Ended trained = run("train --out " + path("rope") + " " + small_training(folder_ / "data") +
                            " --position.encoding rope --train.tokens 3200");
  ASSERT_EQ(trained.status, 0) << trained.output;
  const Ended scaled =
      run("eval " + path("rope") + " --rope-scaling dynamic_ntk:2 --lengths 16,64 --json " +
          path("scaled.json"));
  ASSERT_EQ(scaled.status, 0) << scaled.output;
  const Json json = Json::parse(read_file(folder_ / "scaled.json"));
  EXPECT_EQ(json["rope_scaling"], "dynamic_ntk:2");

  // A model that is made with the setting, for each length.
  const fs::path checkpoint = find_checkpoint(folder_ / "rope");
  GptConfig config = saved_config(checkpoint).model;
  config.encoding_options["scaling"] = std::string("dynamic_ntk");
  config.encoding_options["factor"] = 2.0;
  Gpt model(config);
  load_weights(checkpoint, model);
  Context ctx = Context::cpu(2);
  const TokenStream stream(find_shards(folder_ / "data", Split::kValidation));
  const Evaluation expected =
      measure_perplexity(ctx, model, {.stream = stream}, {.lengths = {16, 64}});
  const Ended plain = run("eval " + path("rope") + " --lengths 16,64 --json " + path("plain.json"));
  ASSERT_EQ(plain.status, 0) << plain.output;
  const Json unscaled = Json::parse(read_file(folder_ / "plain.json"));
  for (const std::size_t i : {0, 1}) {
    EXPECT_NEAR(json["lengths"][i]["loss"], expected.lengths[i].loss, 1e-6);
  }
  EXPECT_EQ(json["lengths"][0]["loss"], unscaled["lengths"][0]["loss"]);  // as long as in training
  EXPECT_NE(json["lengths"][1]["loss"], unscaled["lengths"][1]["loss"]);

  const Ended report = run("report " + path("rope") + " --out " + path("report"));
  EXPECT_EQ(report.status, 0) << report.output;
  EXPECT_THAT(report.output, testing::ContainsRegex("\nrope, dynamic_ntk:2 +"));
  expect_refusal(path("rope") + " --rope-scaling yarn:0.5", HasSubstr("position.factor = 0.5"));
  save_run("gated", {});
  expect_refusal(path("gated") + " --rope-scaling yarn:4", HasSubstr("has no option 'scaling'"));
}

TEST_F(EvalCommand, TakesDocumentsFromTheManifest) {
  save_run("run", {});
  const std::string command = path("run") + " --resample documents";
  expect_refusal(command, AllOf(HasSubstr((folder_ / "data").string()), HasSubstr("manifest.json"),
                                HasSubstr("carope data prepare, or resample windows")));
  Manifest manifest;
  manifest.end_of_text = 7;
  manifest.save(folder_ / "data");
  const Ended ended =
      run("eval " + command + " --lengths 32 --tokens 320 --json " + path("documents.json"));
  ASSERT_EQ(ended.status, 0) << ended.output;
  const Json json = Json::parse(read_file(folder_ / "documents.json"));
  EXPECT_EQ(json["resample"], "documents");
  EXPECT_EQ(json["tokens"], 320);
  const Shard shard(find_shards(folder_ / "data", Split::kValidation).front());
  const auto tokens = shard.tokens().first(320);
  EXPECT_EQ(json["lengths"][0]["units"], std::count(tokens.begin(), tokens.end(), 7) + 1);
}

TEST_F(EvalCommand, KeepsAttentionWithinDocumentsWhereTheRunDid) {
  Manifest manifest;
  manifest.end_of_text = 7;
  manifest.save(folder_ / "data");
  Context ctx = Context::cpu(1);
  const auto alone = make_alone();
  const EvalConfig config{.lengths = {64}};
  const TokenStream stream(find_shards(folder_ / "data", Split::kValidation));
  std::vector<double> losses;
  for (const bool documents : {false, true}) {
    const fs::path checkpoint =
        save_run(documents ? "packed" : "across", {{"data", {{"documents", documents}}}});
    Gpt model(saved_config(checkpoint).model);
    load_weights(checkpoint, model);
    losses.push_back(
        evaluate_checkpoints(ctx, *alone, {checkpoint}, config).front().lengths.front().loss);
    const EvalData data{.stream = stream, .end_of_text = 7, .documents = documents};
    EXPECT_EQ(losses.back(), measure_perplexity(ctx, model, data, config).lengths.front().loss);
  }
  EXPECT_NE(losses[0], losses[1]);
}

TEST_F(EvalCommand, RefusesTokensOfAnotherTokenizer) {
  save_run("run", {});
  write_training_data(folder_ / "other");
  const auto prepare_with = [&](const std::string& name, const std::string& tokenizer) {
    Manifest manifest;
    manifest.tokenizer_sha256 = tokenizer;
    manifest.save(folder_ / name);
  };
  const std::string on_other = path("run") + " --lengths 16 --data " + path("other");
  prepare_with("other", "0123456789abcdef");
  EXPECT_EQ(run("eval " + on_other).status, 0) << "the run's own is not known";
  prepare_with("data", "fedcba9876543210");
  const auto names_both =
      AllOf(HasSubstr((folder_ / "other").string()), HasSubstr("tokenizer 0123456789ab,"),
            HasSubstr((folder_ / "data").string()), HasSubstr("with fedcba987654,"),
            HasSubstr("name data prepared with the model's tokenizer"));
  expect_refusal(on_other, names_both);
  expect_refusal(path("run") + " --lengths 16 --data " + path("other/t_val_000000.bin"),
                 names_both);
  const Ended inspected = run("inspect " + path("run") + " --words 1 --data " + path("other"));
  EXPECT_EQ(inspected.status, 1);
  EXPECT_THAT(inspected.output, AllOf(names_both, Not(HasSubstr("The gate over"))));
  prepare_with("other", "fedcba9876543210");
  EXPECT_EQ(run("eval " + on_other).status, 0);
}

TEST_F(EvalCommand, SaysWhatIsWrong) {
  const fs::path checkpoint = save_run("run", {});
  expect_refusal(path("nowhere"),
                 AllOf(HasSubstr("nowhere holds no complete checkpoint"), HasSubstr("name a run")));
  expect_refusal(path("run") + " --lengths 16,0", HasSubstr("0 is not possible; give 1 or more"));
  expect_refusal(path("run") + " --lengths 700",
                 AllOf(HasSubstr("t_val_000000.bin"), HasSubstr("have 700 tokens"),
                       HasSubstr("need 701; give lengths of at most 699")));
  expect_refusal(path("run") + " --tokens 63", HasSubstr("less than one window of 64"));
  expect_refusal(path("run") + " --protocol every", HasSubstr("windows,sliding,last"));
  expect_refusal(path("run") + " --stride 4",
                 HasSubstr("stride = 4 is for the protocol 'sliding'"));
  expect_refusal(path("run") + " --protocol sliding --stride 17",
                 HasSubstr("stride = 17 is not possible with windows of 16; give 1 to 16"));
  expect_refusal(path("run") + " --protocol last --last 17", HasSubstr("last = 17"));
  expect_refusal(path("run") + " --data " + path("gone"),
                 AllOf(HasSubstr("gone is not there"), HasSubstr("--data")));
  expect_refusal(path("run") + " --json " + path("nowhere/x.json"),
                 AllOf(HasSubstr("nowhere/x.json"), HasSubstr("No such file or directory"),
                       Not(HasSubstr("Scoring"))));
  expect_refusal(path("run") + " --json " + path("data"), HasSubstr("it is a directory"));
  save_run("larger", {{"model", {{"vocabulary", std::int64_t{60}}}}});
  expect_refusal(path("run") + " " + path("larger"),
                 AllOf(HasSubstr("model.vocabulary = 50"), HasSubstr("larger has 60")));
  save_run("other", {{"data", {{"path", (folder_ / "others").string()}}}});
  expect_refusal(path("run") + " " + path("other"),
                 AllOf(HasSubstr("others"), HasSubstr("--data")));
  save_run("longer", {{"model", {{"length", std::int64_t{32}}}}});
  expect_refusal(path("run") + " " + path("longer"), HasSubstr("--lengths"));
  save_run("smaller", {{"model", {{"vocabulary", std::int64_t{40}}}}});
  expect_refusal(path("smaller"), AllOf(HasSubstr("t_val_000000.bin"), HasSubstr("vocabulary")));
  fs::resize_file(checkpoint / "model.safetensors", 1000);
  expect_refusal(path("run"), HasSubstr((checkpoint / "model.safetensors").string()));
}

/// The most memory, in bytes, that a run of the program held.
std::size_t peak_memory(const std::string& arguments) {
  int status = 0;
  rusage usage{};
  wait4(start(arguments), &status, 0, &usage);
  EXPECT_EQ(status, 0) << arguments;
  return static_cast<std::size_t>(usage.ru_maxrss) * 1024;
}

TEST_F(EvalCommand, NeedsNoMoreMemoryForALongerWindowThanItsKeysAndValues) {
  constexpr std::int64_t kLong = 32'768;
  const RunConfig config = saved_config(save_run("run", {}));
  fs::create_directory(folder_ / "long");
  const auto tokens = random_tokens(40'000);
  write_bytes(folder_ / "long" / "x_val_000000.bin", shard_bytes({tokens.begin(), tokens.end()}));
  const auto memory_at = [&](std::int64_t length) {
    return peak_memory(fmt::format("eval {} --data {} --tokens {} --lengths {} --threads 2",
                                   path("run"), path("long"), kLong, length));
  };
  const auto grown = static_cast<std::int64_t>(memory_at(kLong) - memory_at(2048));
  constexpr std::int64_t kKeysAndValues = 2 * kLong * 16 * 4;
  const auto whole = static_cast<std::int64_t>(
      Gpt(config.model)
          .plan({.batch = 1, .length = kLong, .purpose = Purpose::kEvaluation})
          .bytes());
  EXPECT_LT(grown, 2 * kKeysAndValues);
  EXPECT_GT(whole, 6 * kKeysAndValues);  // so that whole windows would be seen
}

}  // namespace
}  // namespace carope::test
