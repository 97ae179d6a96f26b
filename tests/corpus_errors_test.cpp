// What a user is told of a corpus with something wrong in it: the file, the place and the remedy.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tuple>

#include "support/corpus_files.h"

namespace carope::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using CorpusErrors = Corpus;

TEST_F(CorpusErrors, ComplainsOfFilesThatAreNotThere) {
  EXPECT_THAT(complaint(folder_ / "none.txt"),
              AllOf(HasSubstr("none.txt does not exist"), HasSubstr("check the path")));
  std::filesystem::create_directory(folder_ / "sub.jsonl");
  EXPECT_THAT(complaint(folder_ / "sub.jsonl"),
              AllOf(HasSubstr("sub.jsonl is a directory"), HasSubstr("name a file in it")));
}

TEST_F(CorpusErrors, ComplainsOfNamesItDoesNotKnow) {
  for (const char* name : {"a.json", "a", "a.gz", "a.parquet.gz", "a.txt.bz2"}) {
    EXPECT_THAT(complaint(name, "{}"),
                AllOf(HasSubstr(name), HasSubstr(".txt"), HasSubstr(".jsonl"), HasSubstr(".gz"),
                      HasSubstr(".zst"), HasSubstr(".parquet")));
  }
}

TEST_F(CorpusErrors, ComplainsOfFilesWithoutDocuments) {
  const auto complains = AllOf(HasSubstr("holds no documents"), HasSubstr("leave it out"));
  for (const char* name :
       {"a.txt", "a.jsonl", "a.txt.gz", "a.jsonl.gz", "a.txt.zst", "a.jsonl.zst"}) {
    EXPECT_THAT(complaint(name, ""), AllOf(HasSubstr(name), complains));
  }
  EXPECT_THAT(complaint("a.jsonl", "\n \r\n\n"), complains);
  EXPECT_THAT(complaint("a.jsonl", "\xef\xbb\xbf"), complains);
  EXPECT_THAT(complaint("a.jsonl.gz", gzip("\n\n")), complains);
  EXPECT_THAT(complaint("a.jsonl.zst", zstd("")), complains);
  EXPECT_THAT(complaint("a.txt", "<|endoftext|>\n<|endoftext|>", kDelimited), complains);
}

TEST_F(CorpusErrors, ComplainsOfLinesThatAreNoObjects) {
  const auto second_line = [&](const std::string& line) {
    return complaint("a.jsonl", "{\"text\": \"fine\"}\n" + line + "\n{\"text\": \"fine\"}\n");
  };
  for (const char* line :
       {"{\"text\": \"open", "{\"text\": \"x\"", "{\"text\": \"x\"} {\"text\": \"y\"}",
        "{\"text\": \"x\", \"id\": broken}", "text", "{\"text\": \"\xff\"}"}) {
    EXPECT_THAT(second_line(line), AllOf(HasSubstr("a.jsonl, line 2: this is not JSON"),
                                         HasSubstr("repair or remove")));
  }
  EXPECT_THAT(second_line("[\"text\"]"), AllOf(HasSubstr("a.jsonl, line 2: an array"),
                                               HasSubstr("[\"text\"]"), HasSubstr("one object")));
  EXPECT_THAT(second_line("\"text\""), HasSubstr("a string where an object is needed"));
  EXPECT_THAT(second_line("12"), HasSubstr("a number where an object is needed"));
}

TEST_F(CorpusErrors, ComplainsOfObjectsWithoutText) {
  const auto second_line = [&](const std::string& line) {
    return complaint("a.jsonl.gz", gzip("{\"text\": \"fine\"}\n" + line));
  };
  EXPECT_THAT(second_line("{\"body\": \"x\", \"id\": 1}"),
              AllOf(HasSubstr("a.jsonl.gz, line 2: there is no field \"text\""),
                    HasSubstr("only \"body\", \"id\""), HasSubstr("--text-field")));
  EXPECT_THAT(second_line("{}"), HasSubstr("the object is empty"));
  EXPECT_THAT(second_line("{\"text\": null}"), HasSubstr("is null, a string is needed"));
  EXPECT_THAT(
      second_line("{\"text\": [\"x\"]}"),
      AllOf(HasSubstr("line 2: the field \"text\" is an array"), HasSubstr("--text-field")));
}

TEST_F(CorpusErrors, ComplainsOfEndlessLines) {
  const std::string content = "{\"text\": \"x\"}\n{\"text\": \"" + std::string(2'000'000, 'x');
  EXPECT_THAT(complaint("a.jsonl", content, {.longest = 1'000'000}),
              AllOf(HasSubstr("a.jsonl, line 2: it is longer than 1000000 bytes"),
                    HasSubstr("one object on each line")));
}

TEST_F(CorpusErrors, ComplainsOfEndlessWords) {
  const std::string text(4'000'000, 'x');
  EXPECT_THAT(complaint("b.txt", "first\n<|endoftext|>\n" + text,
                        {.delimiter = "<|endoftext|>", .longest = 3'000'000}),
              AllOf(HasSubstr("b.txt, document 1:"), HasSubstr("3000000 bytes"),
                    HasSubstr("check that it is text")));
}

TEST_F(CorpusErrors, ComplainsOfTruncatedFiles) {
  const std::string text = random_text(500'000, 1);
  for (const auto& [name, packed, kind] : {std::tuple{"a.txt.gz", gzip(text), "gzip member"},
                                           std::tuple{"a.txt.zst", zstd(text), "zstd frame"}}) {
    const std::string_view whole = packed;
    for (const std::size_t size :
         {std::size_t{1}, std::size_t{5}, packed.size() / 2, packed.size() - 1}) {
      EXPECT_THAT(complaint(name, whole.substr(0, size)),
                  AllOf(HasSubstr(name), HasSubstr(kind),
                        HasSubstr(fmt::format("at byte {}", size)), HasSubstr("again")));
      EXPECT_THAT(
          complaint(name, packed + packed.substr(0, size)),
          AllOf(HasSubstr(kind), HasSubstr(fmt::format("at byte {}", packed.size() + size))));
    }
  }
}

TEST_F(CorpusErrors, ComplainsOfDamagedFiles) {
  const std::string text = random_text(500'000, 1);
  for (const auto& [name, packed, kind] :
       {std::tuple{"a.txt.gz", gzip(text), "gzip"}, std::tuple{"a.txt.zst", zstd(text), "zstd"}}) {
    const auto complains = AllOf(HasSubstr(name), HasSubstr("is damaged at about byte "),
                                 HasSubstr(kind), HasSubstr("again"));
    for (const std::size_t at : {std::size_t{0}, packed.size() / 2, packed.size() - 2}) {
      std::string damaged = packed;
      damaged[at] = static_cast<char>(damaged[at] ^ 0x55);
      EXPECT_THAT(complaint(name, damaged), complains) << at;
    }
    EXPECT_THAT(complaint(name, packed + "garbage behind"), complains);
    EXPECT_THAT(complaint(name, packed + std::string(512, '\0')), complains);
    EXPECT_THAT(complaint(name, text), complains) << "not compressed at all";
  }
}

TEST_F(CorpusErrors, DamageNeverPassesForText) {
  const std::string text = random_text(1000, 1);
  expect_no_wrong_text("a.txt.gz", gzip(text), {text}, 3);
  expect_no_wrong_text("a.txt.zst", zstd(text), {text}, 3);
}

}  // namespace
}  // namespace carope::test
