// What a report says in numbers: results.json, the table, and the names of runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/file.h"
#include "report/comparison_table.h"
#include "report/page.h"
#include "support/errors.h"
#include "support/program.h"
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

std::vector<std::string> labels_of(const std::vector<std::filesystem::path>& folders) {
  const RunCollection collection = load_runs(folders);
  std::vector<std::string> labels;
  for (const EncodingRuns& encoding : group_runs(collection.runs)) {
    labels.push_back(encoding.label);
  }
  return labels;
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
            R"("interval":{"64":[10.8,13.200000000000001],"128":[18.0,22.0]}})");
  EXPECT_EQ(results["runs"][3]["encoding"], "learnable");
  EXPECT_EQ(results["runs"][3]["perplexity"].dump(), R"({"64":14.0,"128":null})");
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
  EXPECT_THAT(lines[8], HasSubstr("another experiment"));
}

TEST(Report, ThePaperStandsBesideItsOwnModel) {
  const TemporaryFolder folder;
  write_run(folder / "tiny", {.encoding = "sinusoidal", .layers = 6, .width = 512, .length = 512});
  write_run(folder / "small", {.encoding = "rope", .layers = 12, .width = 768, .length = 512});
  const auto table_of = [&](const std::vector<std::filesystem::path>& folders) {
    return to_markdown(compare(group_runs(load_runs(folders).runs)));
  };
  EXPECT_THAT(table_of({folder / "tiny"}),
              AllOf(HasSubstr("paper, GPT-Tiny, FineWeb-Edu @512 |"),
                    HasSubstr("| 30.62 | 223.28 |"), HasSubstr("| 2.2500 |"),
                    HasSubstr("No run has been evaluated"), Not(HasSubstr("another experiment"))));
  EXPECT_THAT(table_of({folder / "small"}),
              AllOf(HasSubstr("paper, GPT-Small, FineWeb-Edu @1024 |"),
                    HasSubstr("| 21.31 | 56.61 |"), Not(HasSubstr("another experiment"))));
  EXPECT_THAT(table_of({folder / "small", folder / "tiny"}),
              AllOf(HasSubstr("paper, GPT-Tiny"), HasSubstr("another experiment")));
}

TEST(Report, RunsThatDifferInMoreThanSeedsAreCalledByTheirFolders) {
  const TemporaryFolder folder;
  write_run(folder / "a", {.encoding = "rope", .seed = 1});
  write_run(folder / "b", {.encoding = "rope", .seed = 2});
  write_run(folder / "c", {.encoding = "carope", .seed = 1});
  EXPECT_THAT(labels_of({folder / "a", folder / "b", folder / "c"}), ElementsAre("rope", "carope"));
  EXPECT_THAT(labels_of({folder / "a", folder / "a" / ""}), ElementsAre("rope"));
  write_run(folder / "d", {.encoding = "rope", .seed = 3, .position = "base = 5e5\n"});
  EXPECT_THAT(labels_of({folder / "a", folder / "c", folder / "d" / ""}),
              ElementsAre("a", "carope", "d"));
  write_run(folder / "e", {.encoding = "rope", .seed = 1});  // a repetition is no further seed
  EXPECT_THAT(labels_of({folder / "a", folder / "e"}), ElementsAre("a", "e"));
  write_label(folder / "d", "rope", 7);
  write_label(folder / "c", "mine", 3);
  EXPECT_THAT(labels_of({folder / "a", folder / "d", folder / "c"}),
              ElementsAre("mine", "rope", "a"));
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
  EXPECT_THAT(refusal_of(folder / "a"), HasSubstr("is not a folder"));
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
                                     HasSubstr("evaluate the run")));
  write_evaluation(run, {{64, -2.0}});
  EXPECT_THAT(refusal_of(run),
              AllOf(HasSubstr("evaluation.json: -2 at length 64"), HasSubstr("evaluate the run")));
  std::filesystem::remove(run / "evaluation.json");
  Json gate = made_gate();
  gate["passage"]["frequencies"][1][1].erase(0);
  write_bytes(run / "gate.json", gate.dump());
  EXPECT_THAT(refusal_of(run), AllOf(HasSubstr("gate.json"), HasSubstr("[2 heads][10 tokens]"),
                                     HasSubstr("make the file again")));
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
  EXPECT_EQ(place(lines[1], "115 "), place(lines[2], "115 "));
}

TEST(Report, TheProgramRefusesWhatItCannotReportOn) {
  const TemporaryFolder folder;
  write_run(folder / "a", {});
  const Ended no_place = run("report '" + (folder / "a").string() + "'");
  EXPECT_EQ(no_place.status, 1);
  EXPECT_THAT(no_place.output, HasSubstr("give --out FOLDER"));
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
