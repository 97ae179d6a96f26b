#include "data/synth/synth.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "core/error.h"
#include "core/file.h"
#include "core/hash.h"
#include "data/tokenizer/pretokenizer.h"
#include "support/folder.h"
#include "support/program.h"
#include "support/school_book.h"

namespace carope::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::uint64_t kDocuments = 200;

/// The first documents of the default corpus.
const std::vector<std::string>& documents() {
  static const auto kMade = [] {
    std::vector<std::string> made;
    for (std::uint64_t i = 0; i < kDocuments; ++i) {
      made.push_back(synth_document({}, i));
    }
    return made;
  }();
  return kMade;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    lines.push_back(line);
  }
  return lines;
}

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

TEST(Synth, IsAFunctionOfSeedAndIndex) {
  // A change of any word changes these: then models trained before cannot be compared any more.
  EXPECT_EQ(sha256(synth_document({.seed = 1}, 0)),
            "c8e32c3e90ca3efac5651c04d03817eb8822dee2beb19fff23c62ea22f0f5907");
  EXPECT_EQ(sha256(synth_document({.seed = 1}, 1'000'003)),
            "96a23b349fe3441a86a559859fc0bb4add6847f45377f8c249bb4613678cde7e");
  EXPECT_EQ(sha256(synth_document({.seed = ~0ULL}, 5)),
            "e067056382543039a70b2474df01c418a1e6193d73fde1ce0f09d8731cc9c439");
  EXPECT_EQ(synth_document({}, 7), synth_document({.seed = 1}, 7));
}

TEST(Synth, NoTwoDocumentsAreTheSame) {
  std::set<std::string> made(documents().begin(), documents().end());
  for (std::uint64_t seed = 2; seed < 20; ++seed) {
    made.insert(synth_document({seed}, 0));
  }
  EXPECT_EQ(made.size(), kDocuments + 18);
}

TEST(Synth, DocumentsAreLongerThanDemoContexts) {
  std::size_t over_1500 = 0;
  for (const std::string& document : documents()) {
    const std::size_t words = words_of(document).size();
    EXPECT_GE(words, 800U);
    EXPECT_LE(words, 4000U);
    over_1500 += words > 1500 ? 1 : 0;
  }
  EXPECT_GE(over_1500, kDocuments * 8 / 10);
}

TEST(Synth, TextIsPlainAsciiWithATitleAndParagraphs) {
  for (const std::string& document : documents()) {
    EXPECT_TRUE(document.starts_with("Chapter "));
    EXPECT_EQ(document.back(), '\n');
    EXPECT_EQ(document.find("\n\n"), std::string::npos);
    EXPECT_EQ(document.find("  "), std::string::npos);
    EXPECT_EQ(document.find_first_of("{}[]|\\"), std::string::npos) << "an unexpanded form";
    EXPECT_TRUE(std::all_of(document.begin(), document.end(),
                            [](char c) { return c == '\n' || (c >= ' ' && c <= '~'); }));
  }
}

TEST(Synth, SentencesBeginWithCapitalsAndUseArticlesRightly) {
  for (const std::string& document : documents()) {
    for (const std::string& line : lines_of(document)) {
      const auto words = words_of(line);
      EXPECT_FALSE(std::islower(static_cast<unsigned char>(line[0]))) << line;
      for (std::size_t i = 0; i + 1 < words.size(); ++i) {
        const char next = words[i + 1][words[i + 1][0] == '"' ? 1 : 0];
        const bool vowel = std::string("aeiou").find(next) != std::string::npos;
        EXPECT_FALSE(words[i].ends_with(".") && std::islower(static_cast<unsigned char>(next)) != 0)
            << line;
        EXPECT_FALSE((words[i] == "a" || words[i] == "A") && vowel) << line;
        EXPECT_FALSE((words[i] == "an" || words[i] == "An") && !vowel) << line;
        EXPECT_FALSE(words[i] == words[i + 1]) << line;
      }
    }
  }
}

TEST(Synth, SpeaksFewWordsInManyWays) {
  std::map<std::string, std::size_t> counts;
  std::map<std::string, std::set<std::size_t>> found_in;  // documents
  double total = 0;
  std::set<std::string> paragraphs;
  std::size_t paragraph_count = 0;
  for (std::size_t i = 0; i < documents().size(); ++i) {
    for (const std::string& paragraph : lines_of(documents()[i])) {
      ++paragraph_count;
      paragraphs.insert(paragraph);
    }
    std::string word;
    for (const char letter : documents()[i]) {
      if (std::isalpha(static_cast<unsigned char>(letter)) != 0) {
        word += static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
      } else if (!word.empty()) {
        ++counts[word];
        found_in[word].insert(i);
        ++total;
        word.clear();
      }
    }
  }
  // What is in one document of twenty is English; the rest is names, each in its own document.
  double entropy = 0;
  std::size_t english = 0;
  double names = 0;
  for (const auto& [word, count] : counts) {
    const bool common = found_in[word].size() >= kDocuments / 20;
    english += common ? 1 : 0;
    names += common ? 0.0 : static_cast<double>(count);
    const double share = static_cast<double>(count) / total;
    entropy -= share * std::log2(share);
  }
  EXPECT_GT(english, 600U);
  EXPECT_LT(english, 1200U);
  EXPECT_GT(names / total, 0.10);
  EXPECT_LT(names / total, 0.25);
  EXPECT_GT(entropy, 8.0);                                   // bits a word
  EXPECT_GT(paragraphs.size(), paragraph_count * 85 / 100);  // headings alone come again
}

TEST(Synth, NoParagraphOccursTwiceInADocument) {
  for (const std::string& document : documents()) {
    std::set<std::string> seen;
    for (const std::string& paragraph : lines_of(document)) {
      EXPECT_TRUE(seen.insert(paragraph).second) << paragraph;
    }
  }
}

TEST(Synth, EveryAnswerFollowsFromWhatWasSaidBefore) {
  std::vector<std::size_t> distances;
  std::size_t facts = 0;
  std::size_t events = 0;
  std::size_t sums = 0;
  for (const std::string& document : documents()) {
    const Reading reading = read_school_book(document);
    EXPECT_THAT(reading.mistakes, IsEmpty()) << lines_of(document)[0];
    distances.insert(distances.end(), reading.distances.begin(), reading.distances.end());
    facts += reading.facts;
    events += reading.events;
    sums += reading.sums;
  }
  EXPECT_GT(facts, 50 * kDocuments);
  EXPECT_GT(events, 5 * kDocuments);
  EXPECT_GT(sums, 3 * kDocuments);
  ASSERT_GT(distances.size(), 30 * kDocuments);
  // From the last mention of a fact to the question about it: near, far, and very far.
  std::sort(distances.begin(), distances.end());
  const auto share_above = [&](std::size_t words) {
    const auto above =
        distances.end() - std::upper_bound(distances.begin(), distances.end(), words);
    return static_cast<double>(above) / static_cast<double>(distances.size());
  };
  EXPECT_LT(share_above(50), 0.95);
  EXPECT_LT(share_above(150), 0.80);
  EXPECT_GT(share_above(300), 0.25);
  EXPECT_GT(share_above(1000), 0.10);
}

/// The document with a change in the last answer of its exercises that has `before` in it, or the
/// same document if none has.
std::string with_wrong_answer(const std::string& document, const std::string& before,
                              const std::string& after) {
  for (std::size_t line = document.rfind("\nQuestion "); line != std::string::npos && line > 0;
       line = document.rfind("\nQuestion ", line - 1)) {
    const std::size_t at = document.find(before, document.find('?', line));
    if (at < document.find('\n', line + 1)) {
      return std::string(document).replace(at, before.size(), after);
    }
  }
  return document;
}

TEST(SchoolBookReader, NoticesWrongAnswers) {
  const std::vector<std::pair<std::string, std::string>> changes{
      {" miles", "1 miles"},
      {"? Yes, ", "? No, "},
      {"? No, ", "? Yes, "},
      {" years old", "1 years old"},
      {" coins", "1 coins"},
      {" minus ", "0 minus "},
      {"? In ", "? In New"},
      {" was founded in 1", " was founded in 11"},
      {"'s home is in ", "'s home is in New"}};
  std::map<std::string, int> tried;
  for (std::size_t i = 0; i < 50; ++i) {
    for (const auto& [before, after] : changes) {
      const std::string changed = with_wrong_answer(documents()[i], before, after);
      if (changed != documents()[i]) {
        ++tried[before];
        EXPECT_FALSE(read_school_book(changed).mistakes.empty()) << i << ": " << before;
      }
    }
  }
  EXPECT_EQ(tried.size(), changes.size());
}

TEST(SchoolBookReader, FollowsWhatChanges) {
  const std::string story =
      "Chapter 1: A Test\n"
      "Mara has 14 plums. Tobin has 3 plums. Then Mara gives 5 plums to Tobin. Mara lives in "
      "Harrow. Soon Mara leaves Harrow and walks to Minden.\n";
  const auto mistakes_of = [&](const std::string& rest) {
    return read_school_book(story + rest + "\n").mistakes;
  };
  EXPECT_THAT(mistakes_of("Question 1. How many plums does Mara have? Mara has 9 plums."),
              IsEmpty());
  EXPECT_THAT(mistakes_of("Question 1. How many plums does Tobin have? 8 plums."), IsEmpty());
  EXPECT_THAT(mistakes_of("Question 1. Where is Mara now? In Minden."), IsEmpty());
  EXPECT_THAT(mistakes_of("Question 1. How many plums does Mara have? Mara has 14 plums."),
              testing::Contains(HasSubstr("contradicts count/mara/plums = 9")));
  EXPECT_THAT(mistakes_of("Question 1. Where is Mara now? In Harrow."),
              testing::Contains(HasSubstr("should say 'minden'")));
  EXPECT_THAT(mistakes_of("Question 1. How old is Mara? 30 years."),
              testing::Contains(HasSubstr("has not been told")));
  EXPECT_THAT(mistakes_of("Question 1. Why does Mara walk? She likes it."),
              testing::Contains(HasSubstr("cannot be understood")));
}

class SynthFiles : public testing::Test {
 protected:
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  Ended synth(const std::string& arguments) const { return run("data synth " + arguments); }
  /// What is left in the folder.
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
      names.push_back(entry.path().filename());
    }
    return names;
  }

 private:
  const TemporaryFolder folder_;
};

TEST_F(SynthFiles, AreTheSameForAnyNumberOfThreads) {
  for (const std::string ending : {".txt", ".jsonl"}) {
    ASSERT_EQ(synth("--documents 300 --threads 1 --out " + path("one" + ending)).status, 0);
    ASSERT_EQ(synth("--documents 300 --threads 3 --out " + path("three" + ending)).status, 0);
    EXPECT_EQ(sha256_of_file(path("one" + ending)), sha256_of_file(path("three" + ending)));
  }
  EXPECT_EQ(files().size(), 4U);
}

TEST_F(SynthFiles, HoldTheDocumentsInOrder) {
  ASSERT_EQ(synth("--documents 3 --seed 9 --out " + path("a.txt")).status, 0);
  ASSERT_EQ(synth("--documents 3 --seed 9 --out " + path("a.jsonl")).status, 0);
  std::string text;
  for (std::uint64_t i = 0; i < 3; ++i) {
    text += (i > 0 ? "<|endoftext|>\n" : "") + synth_document({9}, i);
  }
  EXPECT_EQ(read_file(path("a.txt")), text);
  const auto lines = lines_of(read_file(path("a.jsonl")));
  ASSERT_EQ(lines.size(), 3U);
  for (std::uint64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(nlohmann::json::parse(lines[i]), nlohmann::json({{"text", synth_document({9}, i)}}));
  }
}

TEST_F(SynthFiles, GoToStandardOutputWithoutAName) {
  const Ended printed = run("data synth --documents 2 2>/dev/null | cat");
  EXPECT_EQ(printed.status, 0);
  const auto lines = lines_of(printed.output);
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(nlohmann::json::parse(lines[1])["text"], documents()[1]);
}

TEST(SynthCorpus, StopsAtTheFirstDocumentThatReachesTheAmount) {
  const auto tokens_of = [](std::string_view text) {
    std::int64_t count = 0;
    for (; !text.empty(); ++count) {
      text.remove_prefix(first_piece(text));
    }
    return count;
  };
  std::int64_t bytes = 0;
  std::int64_t tokens = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    bytes += static_cast<std::int64_t>(documents()[i].size());
    tokens += tokens_of(documents()[i]);
  }
  const auto made = [](SynthUnit unit, std::int64_t count) {
    std::size_t taken = 0;
    const SynthTotals totals =
        synth_corpus({}, {unit, count}, 2, [&](std::string_view document, const SynthTotals&) {
          EXPECT_EQ(document, documents()[taken]);
          ++taken;
        });
    EXPECT_EQ(totals.documents, static_cast<std::int64_t>(taken));
    return taken;
  };
  EXPECT_EQ(made(SynthUnit::kDocuments, 4), 4U);
  EXPECT_EQ(made(SynthUnit::kBytes, bytes), 4U);
  EXPECT_EQ(made(SynthUnit::kBytes, bytes + 1), 5U);
  EXPECT_EQ(made(SynthUnit::kBytes, 1), 1U);
  EXPECT_EQ(made(SynthUnit::kTokens, tokens), 4U);
  EXPECT_EQ(made(SynthUnit::kTokens, tokens + 1), 5U);
  EXPECT_THROW(made(SynthUnit::kTokens, 0), ConfigError);
}

TEST_F(SynthFiles, AmountsHaveSuffixes) {
  const Ended ended = synth("--tokens 20k --out " + path("a.txt"));
  EXPECT_EQ(ended.status, 0);
  EXPECT_THAT(ended.output, AllOf(HasSubstr("a.txt: "), HasSubstr(" tokens\n")));
  // A small tokenizer cuts words, so that fewer documents have as many tokens.
  const Ended counted = synth(
      "--tokens 20k --tokenizer '" CAROPE_SOURCE_DIR "/tests/data/small' --out " + path("c.txt"));
  EXPECT_EQ(counted.status, 0);
  EXPECT_LT(std::filesystem::file_size(path("c.txt")), std::filesystem::file_size(path("a.txt")));
  EXPECT_THAT(synth("--bytes 2M --out " + path("b.txt")).output, HasSubstr("2.0"));
  EXPECT_GE(std::filesystem::file_size(path("b.txt")), 2'000'000U);
  EXPECT_LT(std::filesystem::file_size(path("b.txt")), 2'040'000U);
}

TEST_F(SynthFiles, BadOptionsAreRefusedAndNothingIsWritten) {
  const auto refused = [&](const std::string& arguments) {
    const Ended ended = synth(arguments);
    EXPECT_NE(ended.status, 0) << arguments;
    return ended.output;
  };
  const std::string out = " --out " + path("a.txt");
  EXPECT_THAT(refused("--bytes 10k --tokens 10k" + out),
              AllOf(HasSubstr("--bytes"), HasSubstr("excludes"), HasSubstr("--tokens")));
  EXPECT_THAT(refused("--documents 0" + out), HasSubstr("--documents: 0 is not possible"));
  EXPECT_THAT(refused("--documents -4" + out), HasSubstr("--documents: -4 is not possible"));
  EXPECT_THAT(refused("--bytes 12q" + out), AllOf(HasSubstr("--bytes"), HasSubstr("q")));
  EXPECT_THAT(refused("--threads -1" + out), HasSubstr("threads = -1"));
  EXPECT_THAT(refused("--seed -1" + out), HasSubstr("--seed: -1 is not possible; give 0 or more"));
  EXPECT_THAT(refused("--seed x" + out), HasSubstr("--seed"));
  EXPECT_THAT(refused("--out " + path("a.csv")),
              AllOf(HasSubstr("a.csv"), HasSubstr(".txt"), HasSubstr(".jsonl")));
  EXPECT_THAT(refused("--out " + path("nowhere/a.txt")),
              AllOf(HasSubstr("nowhere/a.txt"), HasSubstr("check the path")));
  EXPECT_THAT(files(), IsEmpty());
  std::filesystem::create_directory(path("folder.txt"));
  EXPECT_THAT(
      refused("--out " + path("folder.txt")),
      AllOf(HasSubstr("folder.txt"), HasSubstr("is a directory"), HasSubstr("name a file")));
  EXPECT_EQ(files().size(), 1U);
  EXPECT_NE(run("data").status, 0);
}

TEST_F(SynthFiles, AFullDiskIsReported) {
  if (!std::filesystem::exists("/dev/full")) {
    GTEST_SKIP() << "this system has no /dev/full";
  }
  const Ended ended = run("data synth --documents 2 2>&1 >/dev/full || echo and failed");
  EXPECT_THAT(ended.output, AllOf(HasSubstr("cannot write to standard output"),
                                  HasSubstr("name a file with --out"), HasSubstr("and failed")));
}

}  // namespace
}  // namespace carope::test
