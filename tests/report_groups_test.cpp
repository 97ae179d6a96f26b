// Which runs a report takes for seeds of one encoding, and what it calls the others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/file.h"
#include "support/reports.h"
#include "support/run_folders.h"

namespace carope::test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

std::vector<std::string> labels_of(const std::vector<std::filesystem::path>& folders) {
  const RunCollection collection = load_runs(folders);
  std::vector<std::string> labels;
  for (const EncodingRuns& encoding : group_runs(collection.runs)) {
    labels.push_back(encoding.label);
  }
  return labels;
}

TEST(ReportGroups, RunsThatDifferInMoreThanSeedsAreToldApartByTheirFolders) {
  const TemporaryFolder folder;
  write_run(folder / "a", {.encoding = "rope", .seed = 1});
  write_run(folder / "b", {.encoding = "rope", .seed = 2, .data = "elsewhere"});
  write_run(folder / "c", {.encoding = "carope", .seed = 1});
  EXPECT_THAT(labels_of({folder / "a", folder / "b", folder / "c"}), ElementsAre("rope", "carope"));
  EXPECT_THAT(labels_of({folder / "a", folder / "a" / ""}), ElementsAre("rope"));
  write_run(folder / "d", {.encoding = "rope", .seed = 3, .position = "base = 5e5\n"});
  EXPECT_THAT(labels_of({folder / "a", folder / "c", folder / "d" / "", folder / "b"}),
              ElementsAre("rope (a)", "rope (d)", "carope"));
  write_label(folder / "d", "rope", 7);
  write_label(folder / "c", "mine", 3);
  EXPECT_THAT(labels_of({folder / "a", folder / "d", folder / "c"}),
              ElementsAre("mine", "rope (d)", "rope (a)"));
  write_run(folder / "x" / "a", {.encoding = "rope", .seed = 1, .batch_tokens = 2000});
  write_run(folder / "y" / "a", {.encoding = "rope", .seed = 2, .sha256 = "fedcba9876543210"});
  EXPECT_THAT(labels_of({folder / "x" / "a", folder / "y" / "a"}),
              ElementsAre("rope (x/a)", "rope (y/a)"));
  EXPECT_THAT(labels_of({folder / "b", folder / "y" / "a"}), ElementsAre("rope (b)", "rope (a)"));
}

TEST(ReportGroups, ASettingLeftOutIsItsDefault) {
  const TemporaryFolder folder;
  const auto labels_with = [&](const std::string& position) {
    write_run(folder / "a", {.encoding = "carope", .seed = 1, .batch_tokens = 512});
    write_run(folder / "b",
              {.encoding = "carope", .seed = 2, .position = position, .batch_tokens = 512});
    return labels_of({folder / "a", folder / "b"});
  };
  EXPECT_THAT(labels_with("bias_deviation = 0.0\n"), ElementsAre("carope"));
  EXPECT_THAT(labels_with("bias_deviation = 0.5\n"), ElementsAre("carope (a)", "carope (b)"));
  EXPECT_THAT(labels_with("of_another_version = 0.0\n"), ElementsAre("carope (a)", "carope (b)"));
}

/// An experiment of one labelled run.
void write_small_experiment(const std::filesystem::path& folder, const MadeRun& run,
                            double perplexity) {
  const std::string name = run.encoding + "-seed" + std::to_string(run.seed);
  write_run(folder / name, run);
  write_label(folder / name, run.encoding, 0);
  write_evaluation(folder / name, {{64, perplexity}});
  write_bytes(folder / "experiment.json", Json{{"title", "t"}, {"runs", {name}}}.dump());
}

TEST(ReportGroups, LabelsDoNotMixExperiments) {
  const TemporaryFolder folder;
  write_small_experiment(folder / "demo", {.encoding = "carope"}, 380.5);
  write_small_experiment(folder / "other", {.encoding = "carope", .seed = 2, .batch_tokens = 500},
                         982.1);
  EXPECT_THAT(table_of({folder / "demo", folder / "other"}),
              AllOf(HasSubstr("| carope (demo) | **380.5** | 115 | 28.99 | 36.74 |"),
                    HasSubstr("| carope (other) | 982.1 | 115 | 28.99 | 36.74 |"),
                    Not(HasSubstr("Means over seeds"))));
  // The same, named by the run's folder.
  EXPECT_THAT(labels_of({folder / "demo" / "carope-seed1", folder / "other" / "carope-seed2"}),
              ElementsAre("carope (demo)", "carope (other)"));
  // A further seed of the same configuration is one.
  write_small_experiment(folder / "more", {.encoding = "carope", .seed = 2}, 400.5);
  EXPECT_THAT(table_of({folder / "demo", folder / "more"}),
              AllOf(HasSubstr("| carope | 390.5 ± 14.1 |"), HasSubstr("Means over seeds")));
  const auto encodings = load_runs({folder / "demo", folder / "other"});
  const auto groups = group_runs(encodings.runs);
  EXPECT_EQ(groups[0].slot, 0);  // carope's own colour, and another
  EXPECT_GE(groups[1].slot, 6);
}

TEST(ReportGroups, ACopyOfARunCountsOnce) {
  const TemporaryFolder folder;
  write_small_experiment(folder / "demo", {.encoding = "carope"}, 380.5);
  std::filesystem::copy(folder / "demo", folder / "copy", std::filesystem::copy_options::recursive);
  EXPECT_THAT(
      table_of({folder / "demo", folder / "copy"}),
      AllOf(HasSubstr("| carope | 380.5 | 115 |"), HasSubstr("One seed each"),
            HasSubstr("do not count: " + (folder / "copy" / "carope-seed1").string() + ".")));
  // Of two copies, the one that was evaluated is shown.
  std::filesystem::remove(folder / "demo" / "carope-seed1" / "evaluation.json");
  EXPECT_THAT(table_of({folder / "demo", folder / "copy"}), HasSubstr("| carope | 380.5 | 115 |"));
  // A repetition takes other times: it is neither a copy nor a further seed.
  std::string metrics = read_file(folder / "copy" / "carope-seed1" / "metrics.jsonl");
  metrics.replace(metrics.find("90.0"), 4, "91.0");
  write_bytes(folder / "copy" / "carope-seed1" / "metrics.jsonl", metrics);
  EXPECT_THAT(labels_of({folder / "demo", folder / "copy"}),
              ElementsAre("carope (demo)", "carope (copy)"));
  // One experiment that names such runs tells them apart by their own folders.
  std::filesystem::rename(folder / "copy" / "carope-seed1", folder / "demo" / "again");
  EXPECT_THAT(labels_of({folder / "demo" / "carope-seed1", folder / "demo" / "again"}),
              ElementsAre("carope (demo/carope-seed1)", "carope (demo/again)"));
}

}  // namespace
}  // namespace carope::test
