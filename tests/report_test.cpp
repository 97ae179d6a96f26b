// What a report says in numbers: results.json, the table, and the names of runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/file.h"
#include "report/comparison_table.h"
#include "report/page.h"
#include "report/text.h"
#include "support/deep_json.h"
#include "support/errors.h"
#include "support/program.h"
#include "support/reports.h"
#include "support/run_folders.h"
#include "support/training.h"

namespace carope::test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) {
    lines.push_back(line);
  }
  return lines;
}

std::string refusal_of(const std::filesystem::path& folder) {
  return message_of<FileError>([&] { load_run(folder); });
}

TEST(Report, ResultsHoldEveryRun) {
  const TemporaryFolder folder;
  write_experiment(folder.path());
  const RunCollection collection = load_runs({folder.path()});
  const Json results = Json::parse(results_json(group_runs(collection.runs)));
  ASSERT_EQ(results["runs"].size(), 6U);
  EXPECT_EQ(results["runs"][1].dump(),
            R"({"encoding":"carope","seed":2,"train_length":64,)"
            R"("perplexity":{"64":12.0,"128":20.0},"tokens_per_second":115.0,"folder":"carope-2",)"
            R"("validation_loss":2.25,"steps":4,"training_tokens":4000,)"
            R"("interval":{"64":[10.8,13.200000000000001],"128":[18.0,22.0]},"reason":{}})");
  EXPECT_EQ(results["runs"][3]["encoding"], "learnable");
  EXPECT_EQ(results["runs"][3]["perplexity"].dump(), R"({"64":14.0,"128":null})");
  EXPECT_EQ(results["runs"][3]["reason"].dump(),
            R"({"128":"past the 64 positions of the encoding 'learnable'"})");
  EXPECT_EQ(results["runs"][4]["perplexity"].dump(), "{}");
  EXPECT_EQ(results["runs"][5]["encoding"], kHostileLabel);
}

TEST(Report, TableHasMeansBestsAndThePaper) {
  const TemporaryFolder folder;
  write_experiment(folder.path());
  const RunCollection collection = load_runs({folder.path()});
  EXPECT_EQ(collection.title, "Tom & Jerry's <first> \"run\"");
  const auto lines = lines_of(to_markdown(compare(group_runs(collection.runs))));
  ASSERT_GE(lines.size(), 9U);
  EXPECT_EQ(lines[0],
            "| encoding | @64 | @128 | tokens/s | paper, GPT-Tiny, FineWeb-Edu @512 (1×) | paper, "
            "GPT-Tiny, FineWeb-Edu @1024 (2×) |");
  EXPECT_EQ(lines[1], "|---|---:|---:|---:|---:|---:|");
  // The means of 10 and 12, and of 16 and 20; the deviations of a sample.
  EXPECT_EQ(lines[2], "| carope | 11.00 ± 1.41 | **18.00 ± 2.83** | 115 | 28.99 | 36.74 |");
  EXPECT_EQ(lines[3], "| rope | **10.50** | 160.0 | 115 | 29.33 | 81.27 |");
  EXPECT_EQ(lines[4], "| learnable | 14.00 | – | 115 | 30.48 | – |");
  EXPECT_EQ(lines[5], "| none |  |  | 115 |  |  |");
  EXPECT_EQ(lines[6],
            "| &lt;script&gt;alert(&#39;\\|&#39;)&lt;/script&gt; &amp; &quot;co&quot; | 11.00 | "
            "40.00 | 115 |  |  |");
  EXPECT_THAT(lines[8], AllOf(HasSubstr("lower is better, the lowest is bold. – where an encoding "
                                        "has no positions. Means over seeds"),
                              HasSubstr("The paper's columns are another experiment")));
}

/// A run with a score of three units by a protocol, at 64 and, unless `bound`, at 128: unit i of
/// 100 targets has `loss` + i / 10 a target.
void write_scored_run(const std::filesystem::path& folder, const MadeRun& run, double loss,
                      bool bound = false) {
  write_run(folder, run);
  write_label(folder, run.encoding, run.encoding == "carope" ? 0 : 1);
  Json lengths = Json::array();
  for (const int length : {64, 128}) {
    if (bound && length == 128) {
      lengths.push_back({{"length", length}, {"loss", nullptr}, {"reason", "past the 64"}});
      continue;
    }
    const double mean = loss + 0.1 + length / 1000.0;
    Json losses = Json::array();
    for (int i = 0; i < 3; ++i) {
      losses.push_back(100.0 * (mean + 0.1 * (i - 1)));
    }
    lengths.push_back({{"length", length},
                       {"loss", mean},
                       {"perplexity", std::exp(mean)},
                       {"unit_losses", losses},
                       {"unit_tokens", {100, 100, 100}}});
  }
  for (const char* file : {"evaluation.json", "evaluation-last.json"}) {
    write_bytes(folder / file, Json{{"tokens", 300}, {"lengths", lengths}}.dump());
  }
}

TEST(Report, DifferencesArePairedBySeedAndText) {
  const TemporaryFolder folder;
  write_scored_run(folder / "r1", {.encoding = "rope", .seed = 1}, 3.0);
  write_scored_run(folder / "r2", {.encoding = "rope", .seed = 2}, 4.0);
  write_scored_run(folder / "c2", {.encoding = "carope", .seed = 2}, 3.98);  // not in rope's order
  write_scored_run(folder / "c1", {.encoding = "carope", .seed = 1}, 2.96);
  write_scored_run(folder / "c3", {.encoding = "carope", .seed = 3}, 1.0);  // rope has no seed 3
  write_scored_run(folder / "l1", {.encoding = "learnable", .seed = 1}, 3.5, true);
  // A head whose f varies much, but by the token little, tells tokens apart less than another, and
  // one whose f does not vary tells none apart.
  Json gate = made_gate();
  for (const auto& [head, deviation, share] : std::vector<std::tuple<std::size_t, double, double>>{
           {0, 0.2, 0.01}, {1, 1e-7, 1.0}, {3, 0.1, 0.9}}) {
    gate["gates"][head]["deviation"] = deviation;
    gate["gates"][head]["token_share"] = share;
    gate["gates"][head]["slowest"] = {{{"word", " a|b"}, {"count", 20}, {"mean", 0.25}}};
    gate["gates"][head]["fastest"] = {{{"word", "\n"}, {"count", 16}, {"mean", 0.75}}};
  }
  write_bytes(folder / "c1" / "gate.json", gate.dump());
  const Ended ended =
      run(fmt::format("report {0}/r1 {0}/c2 {0}/c1 {0}/r2 {0}/c3 {0}/l1 --out {0}/out --parts",
                      folder.path().string()));
  ASSERT_EQ(ended.status, 0) << ended.output;
  const std::filesystem::path parts = folder / "out" / "parts";
  // Of -0.04 and -0.02. What makes a unit hard is the same for both, so text leaves no doubt.
  const std::string differences = read_file(parts / "differences.md");
  const std::string mean = "-0.0300 ± 0.0141 [-0.0300, -0.0300]";
  EXPECT_EQ(lines_of(differences)[0], "| encoding | seeds | @64 | @128 |");
  EXPECT_EQ(lines_of(differences)[2], "| carope | 2 | " + mean + " | " + mean + " |");
  EXPECT_EQ(lines_of(differences)[3], "| learnable | 1 | +0.5000 [+0.5000, +0.5000] | – |");
  EXPECT_THAT(differences, HasSubstr("Loss minus that of rope"));
  EXPECT_EQ(read_file(parts / "differences-last.md"), differences);
  EXPECT_EQ(lines_of(read_file(parts / "perplexity-last.md"))[0], "| encoding | @64 | @128 |");
  EXPECT_FALSE(std::filesystem::exists(parts / "differences-sliding.md"));
  EXPECT_EQ(lines_of(read_file(parts / "cost.md"))[2],
            "| carope | 3 | 115 | 115 | 115 | 1.000 |  |");
  EXPECT_THAT(read_file(parts / "gate.md"),
              AllOf(HasSubstr("**carope**, seed 1, over 8.19 k tokens:"),
                    HasSubstr("\n| 1 | 1 | 0.6000 | 0.1000 | 0.4000 | 0.6000 | 0.8000 | 1e+04 |")));
  const auto words = lines_of(read_file(parts / "words.md"));
  EXPECT_EQ(words[5],
            "| 1, 1 | 0.600 | 0.100 | 90 % | <code>␣a\\|b</code> 0.250 | <code>↵</code> 0.750 |");
  EXPECT_THAT(words[6], testing::StartsWith("| 0, 0 | 0.300 | 0.200 | 1 % |"));
  EXPECT_EQ(words.size(), 7);
  for (const char* name : {"perplexity-by-length", "training", "speed", "gate-bases-carope",
                           "gate-frequencies-carope", "gate-passage-carope"}) {
    EXPECT_THAT(read_file(parts / (std::string(name) + ".svg")),
                AllOf(testing::StartsWith("<svg xmlns="), testing::EndsWith("</svg>\n")))
        << name;
  }
  EXPECT_THAT(read_file(parts / "perplexity-by-length.svg"), HasSubstr(">learnable</text>"));
  // The heads of words.md; a token's spaces are coloured, not written, and it breaks lines.
  const std::string passage = read_file(parts / "gate-passage-carope.svg");
  EXPECT_THAT(passage,
              AllOf(HasSubstr(">layer 1, head 1</text>"), HasSubstr(">layer 0, head 0</text>"),
                    Not(HasSubstr(">layer 0, head 1</text>")), HasSubstr(">&lt;b&gt;</text>"),
                    HasSubstr(">café</text>")));
  EXPECT_THAT(passage,
              HasSubstr(fmt::format("<title>f = {:.4f}</title>", made_frequency(1, 1, 0))));

  // A seed that lacks a length is missing there alone. What was scored on other text is no pair.
  const std::string report = fmt::format("report {0}/r1 {0}/r2 {0}/c1 {0}/c2 --out {0}/out --parts",
                                         folder.path().string());
  write_scored_run(folder / "c1", {.encoding = "carope", .seed = 1}, 2.96, true);
  ASSERT_EQ(run(report).status, 0);
  EXPECT_EQ(lines_of(read_file(parts / "differences.md"))[2],
            "| carope | 2 | " + mean + " | -0.0200 [-0.0200, -0.0200] (1 of 2 seeds) |");
  std::string other = read_file(folder / "c1" / "evaluation.json");
  other.replace(other.find("\"tokens\":300"), 12, "\"tokens\":400");
  write_bytes(folder / "c1" / "evaluation.json", other);
  ASSERT_EQ(run(report).status, 0);
  EXPECT_THAT(lines_of(read_file(parts / "differences.md"))[2],
              testing::StartsWith("| carope | 1 | -0.0200 [-0.0200, -0.0200] |"));

  write_scored_run(folder / "c1", {.encoding = "carope", .seed = 1}, 2.96);
  std::string cut = read_file(folder / "c1" / "evaluation.json");
  cut.replace(cut.find("[100,100,100]"), 13, "[100,100]");
  write_bytes(folder / "c1" / "evaluation.json", cut);
  EXPECT_THAT(refusal_of(folder / "c1"),
              AllOf(HasSubstr("evaluation.json: 3 unit_losses and 2 unit_tokens at length 64")));
}

TEST(Report, DifferencesAreAsUncertainAsTheTextMakesThem) {
  const TemporaryFolder folder;
  /// Two units of 100 targets.
  const auto write = [&](const MadeRun& run, double first, double second) {
    write_run(folder / run.encoding, run);
    const Json score{{"length", 64},
                     {"loss", 0.5 * (first + second)},
                     {"perplexity", std::exp(0.5 * (first + second))},
                     {"unit_losses", {100.0 * first, 100.0 * second}},
                     {"unit_tokens", {100, 100}}};
    write_bytes(folder / run.encoding / "evaluation.json",
                Json{{"tokens", 200}, {"lengths", Json::array({score})}}.dump());
  };
  const auto difference = [&] {
    const RunCollection rope = load_runs({folder / "rope"});
    const RunCollection carope = load_runs({folder / "carope"});
    return difference_at(group_runs(carope.runs).front(), group_runs(rope.runs).front(), 64);
  };
  write({.encoding = "rope"}, 3.0, 4.0);
  write({.encoding = "carope"}, 2.9, 4.3);
  const auto found = difference();
  ASSERT_TRUE(found && found->text);
  EXPECT_NEAR(found->seeds.mean, 0.1, 1e-9);
  // A quarter of all draws is the first unit twice, and a quarter the second.
  EXPECT_NEAR(found->text->low, -0.1, 1e-9);
  EXPECT_NEAR(found->text->high, 0.3, 1e-9);
  write({.encoding = "carope", .sha256 = "fedcba9876543210"}, 2.9, 4.3);
  EXPECT_FALSE(difference()) << "on other data";
}

TEST(Report, WhatLooksEqualIsEquallyLow) {
  const TemporaryFolder folder;
  for (const auto& [encoding, perplexity] : std::vector<std::pair<std::string, double>>{
           {"rope", 12.004}, {"carope", 12.001}, {"alibi", 12.006}}) {
    write_run(folder / encoding, {.encoding = encoding});
    write_evaluation(folder / encoding, {{64, perplexity}});
  }
  EXPECT_THAT(table_of({folder / "rope", folder / "carope", folder / "alibi"}),
              AllOf(HasSubstr("| rope | **12.00** |"), HasSubstr("| carope | **12.00** |"),
                    HasSubstr("| alibi | 12.01 |")));
}

TEST(Report, AFasterMachineIsNoFasterEncoding) {
  const TemporaryFolder folder;
  std::string report = "report";
  const auto add = [&](const MadeRun& run) {
    const auto path = folder / (run.encoding + std::to_string(run.seed));
    write_run(path, run);
    report += " " + path.string();
  };
  for (const auto& [seed, rope, carope] : std::vector<std::tuple<int, double, double>>{
           {1, 1.0, 0.98}, {2, 1.0, 2.0}, {3, 2.0, 1.94}}) {
    add({.encoding = "rope", .seed = seed, .pace = rope});
    add({.encoding = "carope", .seed = seed, .pace = carope});
  }
  add({.encoding = "carope", .seed = 4, .pace = 9.0});  // rope has no seed 4
  const auto out = folder / "out";
  ASSERT_EQ(run(report + " --out " + out.string() + " --parts").status, 0);
  EXPECT_EQ(lines_of(read_file(out / "parts" / "cost.md"))[3],
            "| carope | 4 | 400 | 113 | 1.03 k | 0.980 |  |");
  EXPECT_THAT(read_file(out / "parts" / "speed.svg"), HasSubstr("/s · 98 %"));
}

TEST(Report, ThePaperStandsBesideItsOwnModel) {
  const TemporaryFolder folder;
  write_run(folder / "tiny", {.encoding = "sinusoidal", .layers = 6, .width = 512, .length = 512});
  write_run(folder / "small", {.encoding = "rope", .layers = 12, .width = 768, .length = 512});
  EXPECT_THAT(table_of({folder / "tiny"}),
              AllOf(HasSubstr("paper, GPT-Tiny, FineWeb-Edu @512 |"),
                    HasSubstr("| 30.62 | 223.28 |"), HasSubstr("| 2.2500 |"),
                    HasSubstr("No run has been evaluated"), Not(HasSubstr("another experiment")),
                    HasSubstr("these runs on 4.00 k tokens: compare orders, not numbers.")));
  EXPECT_THAT(table_of({folder / "small"}),
              AllOf(HasSubstr("paper, GPT-Small, FineWeb-Edu @1024 |"),
                    HasSubstr("| 21.31 | 56.61 |"), Not(HasSubstr("another experiment"))));
  EXPECT_THAT(table_of({folder / "small", folder / "tiny"}),
              AllOf(HasSubstr("paper, GPT-Tiny"), HasSubstr("another experiment")));
}

TEST(Report, ALossThatDivergedIsNotALengthTheEncodingLacks) {
  const TemporaryFolder folder;
  const std::string reason = "the loss is not finite: the model's <weights> are unusable";
  write_run(folder / "a", {.encoding = "carope", .seed = 1});
  write_evaluation(folder / "a", {{64, 12.0}, {128, 0.0, reason}});
  write_run(folder / "b", {.encoding = "rope"});
  write_evaluation(folder / "b", {{64, 14.0}, {128, 15.0}});
  const RunCollection collection = load_runs({folder / "a", folder / "b"});
  const auto encodings = group_runs(collection.runs);
  const ComparisonTable table = compare(encodings);
  EXPECT_THAT(to_markdown(table),
              AllOf(HasSubstr("| carope | **12.00** | nan |"),
                    HasSubstr("nan, and seeds that are missing: the loss is not finite: the "
                              "model's &lt;weights> are unusable."),
                    Not(HasSubstr("–"))));
  EXPECT_THAT(to_html(table), HasSubstr("<td title=\"the loss is not finite: the model&#39;s "
                                        "&lt;weights&gt; are unusable\">nan</td>"));
  EXPECT_THAT(to_text(table), HasSubstr("missing: " + reason + "."));
  EXPECT_EQ(Json::parse(results_json(encodings))["runs"][0]["reason"]["128"], reason);

  // By another protocol another run failed.
  const std::string other = "the loss is not finite by the last";
  write_bytes(folder / "b" / "evaluation-last.json",
              Json{{"lengths", {{{"length", 64}, {"loss", nullptr}, {"reason", other}}}}}.dump());
  const RunCollection further = load_runs({folder / "a", folder / "b"});
  EXPECT_THAT(to_markdown(compare(group_runs(further.runs), "last")),
              AllOf(HasSubstr(other), Not(HasSubstr("unusable"))));

  write_run(folder / "c", {.encoding = "carope", .seed = 2});
  write_evaluation(folder / "c", {{64, 12.0}, {128, 20.0}});
  const RunCollection seeds = load_runs({folder / "a", folder / "c"});
  EXPECT_THAT(to_html(compare(group_runs(seeds.runs))),
              HasSubstr("unusable\">20.00 (1 of 2 seeds)</td>"));

  // exp of such a loss is no double, which JSON writes as null.
  write_bytes(folder / "b" / "evaluation.json",
              R"({"lengths":[{"length":64,"loss":800.5,"perplexity":null}]})");
  EXPECT_THAT(table_of({folder / "b"}),
              AllOf(HasSubstr("| rope | nan |"), HasSubstr("perplexity of a loss of 800.5")));
}

TEST(Report, AHugePerplexityIsShort) {
  EXPECT_EQ(perplexity_text(999'999.4), "999999");
  EXPECT_EQ(perplexity_text(999'999.5), "1.0e6");
  const TemporaryFolder folder;
  write_run(folder / "a", {.encoding = "rope", .seed = 1});
  write_evaluation(folder / "a", {{64, 1.0e300}, {128, 1.24e8}});
  write_run(folder / "b", {.encoding = "rope", .seed = 2});
  write_evaluation(folder / "b", {{64, 3.0e300}, {128, 1.16e8}});
  EXPECT_THAT(table_of({folder / "a", folder / "b"}),
              HasSubstr("| rope | 2.0e300 ± 1.4e300 | 1.2e8 ± 5.7e6 |"));
}

TEST(Report, NotesSayHowTheLowestIsMarked) {
  const TemporaryFolder folder;
  write_run(folder / "a", {.encoding = "rope"});
  write_evaluation(folder / "a", {{64, 12.0}});
  write_run(folder / "b", {.encoding = "carope"});
  write_evaluation(folder / "b", {{64, 14.0}});
  const RunCollection both = load_runs({folder / "a", folder / "b"});
  const ComparisonTable two = compare(group_runs(both.runs));
  EXPECT_THAT(to_text(two), AllOf(HasSubstr("12.00*"), HasSubstr("better, * marks the lowest."),
                                  Not(HasSubstr("bold"))));
  EXPECT_THAT(to_markdown(two), HasSubstr("better, the lowest is bold."));
  EXPECT_THAT(to_html(two), HasSubstr("better, the lowest is bold."));
  const RunCollection alone = load_runs({folder / "a"});
  const ComparisonTable one = compare(group_runs(alone.runs));
  EXPECT_THAT(to_text(one), AllOf(HasSubstr("lower is better."), Not(HasSubstr("*")),
                                  HasSubstr("(paper: GPT-Tiny, FineWeb-Edu)")));
  EXPECT_THAT(to_markdown(one), Not(HasSubstr("bold")));
}

TEST(Report, ARunOfAnExperimentThatLostItsMetricsIsNamed) {
  const TemporaryFolder folder;
  write_experiment(folder.path());
  const auto refusal = [&] { return message_of<FileError>([&] { load_runs({folder.path()}); }); };
  EXPECT_THAT(load_runs({folder.path()}).not_begun, ElementsAre(folder / "not-begun"));
  std::filesystem::remove(folder / "rope-1" / "metrics.jsonl");
  const std::string lost = (folder / "rope-1" / "metrics.jsonl").string() + " does not exist";
  EXPECT_THAT(refusal(), AllOf(HasSubstr(lost), HasSubstr("copy the run's folder whole")));
  std::filesystem::remove(folder / "rope-1" / "evaluation.json");
  std::filesystem::create_directories(folder / "rope-1" / "checkpoints" / "step-4");
  EXPECT_THAT(refusal(), HasSubstr(lost));
  std::filesystem::remove_all(folder / "rope-1" / "checkpoints");
  const RunCollection rest = load_runs({folder.path()});
  EXPECT_EQ(rest.runs.size(), 5U);
  EXPECT_THAT(rest.not_begun, ElementsAre(folder / "rope-1", folder / "not-begun"));
  const Ended reported = run("report '" + folder.path().string() + "'");
  EXPECT_EQ(reported.status, 0);
  EXPECT_THAT(reported.output,
              HasSubstr((folder / "rope-1").string() + " has not been begun and is left out"));
}

TEST(Report, ALossThatIsNoNumberIsNone) {
  const TemporaryFolder folder;
  write_run(folder / "a", {});
  write_bytes(folder / "a" / "metrics.jsonl",
              "{\"step\":1,\"tokens\":8,\"loss\":null,\"tokens_per_second\":5.0}\n"
              "{\"step\":1,\"tokens\":8,\"validation_loss\":null}\n");
  write_report(folder / "out", "t", load_runs({folder / "a"}).runs);
  const Json results = Json::parse(read_file(folder / "out" / "results.json"));
  EXPECT_TRUE(results["runs"][0]["validation_loss"].is_null());
  EXPECT_THAT(read_file(folder / "out" / "report.html"), Not(HasSubstr("nan")));
}

TEST(Report, BrokenFilesAreNamedWithTheirPlaceAndARemedy) {
  const TemporaryFolder folder;
  EXPECT_THAT(refusal_of(folder / "a"), HasSubstr("a does not exist; name the folder"));
  EXPECT_THAT(refusal_of(folder.path()),
              AllOf(HasSubstr("has no config.toml"), HasSubstr("carope train --out")));
  const auto run = folder / "a";
  write_run(run, {});
  EXPECT_EQ(refusal_of(run), "(nothing thrown)");

  const std::string metrics = read_file(run / "metrics.jsonl");
  write_bytes(run / "metrics.jsonl", "{\"step\":1,\"tok\n" + metrics);
  EXPECT_THAT(refusal_of(run),
              AllOf(HasSubstr("metrics.jsonl:1 cannot"), HasSubstr("remove the line")));
  write_bytes(run / "metrics.jsonl", metrics);
  write_bytes(run / "evaluation.json", "{\"lengths\":[{\"perplexity\":3}]}");
  EXPECT_THAT(refusal_of(run), AllOf(HasSubstr("evaluation.json"), HasSubstr("'length'"),
                                     HasSubstr("; remove it and run carope reproduce again")));
  write_evaluation(run, {{64, -2.0}});
  EXPECT_THAT(refusal_of(run), AllOf(HasSubstr("evaluation.json: -2 at length 64"),
                                     HasSubstr("; remove it and run carope reproduce again")));
  std::filesystem::remove(run / "evaluation.json");
  Json gate = made_gate();
  gate["passage"]["frequencies"][1][1].erase(0);
  write_bytes(run / "gate.json", gate.dump());
  EXPECT_THAT(refusal_of(run), AllOf(HasSubstr("gate.json"), HasSubstr("[2 heads][10 tokens]"),
                                     HasSubstr("; remove it and run carope reproduce again")));
  gate["pairs"] = 0;
  write_bytes(run / "gate.json", gate.dump());
  EXPECT_THAT(refusal_of(run), AllOf(HasSubstr("gate.json"), HasSubstr("0 pairs")));
  gate = made_gate();
  gate["gates"][3]["layer"] = 2;
  write_bytes(run / "gate.json", gate.dump());
  EXPECT_THAT(refusal_of(run), AllOf(HasSubstr("gate.json"), HasSubstr("layer 2 and head 1")));
  std::filesystem::remove(run / "gate.json");
  write_bytes(run / "label.json", "[]");
  EXPECT_THAT(refusal_of(run), AllOf(HasSubstr("label.json"), HasSubstr("or remove it")));
  std::filesystem::remove(run / "label.json");
  write_bytes(run / "config.toml", "[model]\nlayers = 0\n");
  EXPECT_THAT(refusal_of(run), AllOf(HasSubstr("config.toml"), HasSubstr("model.layers = 0")));
  write_run(run, {});
  std::filesystem::remove(run / "run.json");
  EXPECT_THAT(refusal_of(run), HasSubstr("run.json does not exist"));
}

TEST(Report, FilesThatNestTooDeepAreNamed) {
  const TemporaryFolder folder;
  const auto refusal = [&](const std::string& file, const std::string& content) {
    write_run(folder.path(), {});
    write_bytes(folder / file, fmt::format(fmt::runtime(content), deep_json()));
    EXPECT_THAT(refusal_of(folder.path()),
                AllOf(HasSubstr((folder / file).string()), HasSubstr("more than 64 deep")));
    std::filesystem::remove(folder / file);
  };
  refusal("run.json", R"({{"version": "0.1.0", "seed": 1, "data_manifest_sha256": {}}})");
  refusal("evaluation.json", R"({{"lengths": [{{"length": 64, "positions": {}}}]}})");
  refusal("metrics.jsonl", R"({{"tokens": 1, "validation_loss": {}}})");
}

TEST(Report, TheProgramReportsOnAnExperiment) {
  const TemporaryFolder folder;
  write_experiment(folder.path());
  const Ended reported = run("report '" + folder.path().string() + "'");
  EXPECT_EQ(reported.status, 0) << reported.output;
  EXPECT_THAT(reported.output,
              AllOf(HasSubstr("carope"), HasSubstr("18.00 ± 2.83*"), HasSubstr("paper @1024 (2×)"),
                    HasSubstr((folder / "report.html").string() + "\n")));
  EXPECT_THAT(read_file(folder / "table.md"), HasSubstr("| rope | **10.50** |"));
  EXPECT_TRUE(std::filesystem::exists(folder / "results.json"));
  EXPECT_THAT(read_file(folder / "report.html"),
              HasSubstr("<title>Tom &amp; Jerry&#39;s &lt;first"));
  // All columns of the terminal's table end at the same place, whatever characters they hold.
  const auto lines = lines_of(reported.output);
  const auto place = [](const std::string& line, const std::string& what) {
    const std::string before = line.substr(0, line.find(what));
    return std::count_if(before.begin(), before.end(), [](char c) { return (c & 0xC0) != 0x80; });
  };
  EXPECT_THAT(lines[0], HasSubstr("not-begun has not been begun and is left out"));
  EXPECT_EQ(place(lines[2], "115 "), place(lines[3], "115 "));
}

TEST(Report, TheProgramRefusesWhatItCannotReportOn) {
  const TemporaryFolder folder;
  write_run(folder / "a", {});
  const Ended no_place = run("report '" + (folder / "a").string() + "'");
  EXPECT_EQ(no_place.status, 1);
  EXPECT_THAT(no_place.output, HasSubstr("give --out FOLDER"));
  const Ended nowhere = run("report '" + (folder / "nowhere").string() + "'");
  EXPECT_EQ(nowhere.status, 1);
  EXPECT_THAT(nowhere.output, AllOf(HasSubstr("nowhere does not exist; name the folder of a run"),
                                    Not(HasSubstr("--out"))));
  write_bytes(folder / "experiment.json", R"({"title":"t","runs":["missing"]})");
  const Ended none = run("report '" + folder.path().string() + "'");
  EXPECT_EQ(none.status, 1);
  EXPECT_THAT(none.output, AllOf(HasSubstr("experiment.json names no run that was begun"),
                                 HasSubstr("run the experiment first")));
}

TEST(Report, ARunOfTheProgramIsReportedOn) {
  const TemporaryFolder folder;
  write_training_data(folder / "data");
  const std::string settings = small_training(folder / "data");
  ASSERT_EQ(
      run("train --out '" + (folder / "run").string() + "' --threads 1 --train.seed 5 " + settings)
          .status,
      0);
  const Ended reported = run("report '" + (folder / "run").string() + "' --title Mine --out '" +
                             (folder / "out").string() + "'");
  ASSERT_EQ(reported.status, 0) << reported.output;
  const Json result = Json::parse(read_file(folder / "out" / "results.json"))["runs"][0];
  EXPECT_EQ(result["encoding"], "carope");
  EXPECT_EQ(result["seed"], 5);
  EXPECT_EQ(result["steps"], 100);
  EXPECT_EQ(result["training_tokens"], 12800);
  EXPECT_LT(result["validation_loss"], 3.9);  // below that of guessing among 50
  EXPECT_GT(result["tokens_per_second"], 0.0);
  EXPECT_THAT(read_file(folder / "out" / "report.html"),
              AllOf(HasSubstr("<h1>Mine</h1>"), HasSubstr("How training went"),
                    HasSubstr("No run here has been evaluated"), Not(HasSubstr("What the gate"))));
}

}  // namespace
}  // namespace carope::test
