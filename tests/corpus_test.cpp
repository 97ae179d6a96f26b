// Documents as they come out of files, however they are packed and their bytes arrive.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <latch>
#include <nlohmann/json.hpp>

#include "data/tokenizer/pretokenizer.h"
#include "support/corpus_files.h"

namespace carope::test {
namespace {

using testing::ElementsAre;

TEST_F(Corpus, ATextFileIsOneDocument) {
  EXPECT_THAT(read("a.txt", "one\ntwo<|endoftext|>\n"), ElementsAre("one\ntwo<|endoftext|>\n"));
  EXPECT_THAT(read("a.txt", "\n"), ElementsAre("\n"));
}

TEST_F(Corpus, ATextFileIsCutAtItsDelimiter) {
  EXPECT_THAT(read("a.txt", "a\n<|endoftext|>\nb", kDelimited), ElementsAre("a", "b"));
  EXPECT_THAT(read("a.txt", "a<|endoftext|>b<|endoftext|>", kDelimited), ElementsAre("a", "b"));
  EXPECT_THAT(read("a.txt", "\na\n\n<|endoftext|>\n\n b\n", kDelimited),
              ElementsAre("\na\n", "\n b\n"))
      << "exactly one newline on either side belongs to the delimiter";
  EXPECT_THAT(read("a.txt",
                   "<|endoftext|>\n<|endoftext|>a<|endoftext|>\n\n<|endoftext|><|endoftext|>"
                   "b<|endoftext|>\n",
                   kDelimited),
              ElementsAre("a", "b"))
      << "there is no document where there is nothing between delimiters";
  EXPECT_THAT(read("a.txt", "a<|endoftext<|endoftext|>|>b<|endof", kDelimited),
              ElementsAre("a<|endoftext", "|>b<|endof"));
}

TEST_F(Corpus, TextDocumentsAreNumbered) {
  const auto reader = open_documents(write("a.txt", "a--b----c"), {.delimiter = "--"});
  const auto documents = read_all(*reader);
  ASSERT_EQ(documents.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(documents[i].place, static_cast<std::int64_t>(i));
    EXPECT_FALSE(documents[i].continues);
  }
}

TEST_F(Corpus, LinesOfJsonAreDocuments) {
  EXPECT_THAT(read("a.jsonl", "{\"text\": \"one\"}\n{\"id\": 1, \"text\": \"two\\n\\u00e9\"}\n"),
              ElementsAre("one", "two\né"));
  EXPECT_THAT(read("a.jsonl", "\r\n{\"text\": \"one\"}\r\n \t\r\n\n{\"text\": \"\"}"),
              ElementsAre("one", ""));
  EXPECT_THAT(read("a.jsonl", "{\"body\": \"x\", \"text\": \"y\"}", {.text_field = "body"}),
              ElementsAre("x"));
}

TEST_F(Corpus, LinesOfJsonAreNumbered) {
  const auto reader =
      open_documents(write("a.jsonl", "\n{\"text\": \"x\"}\n\n{\"text\": \"y\"}"), CorpusFormat{});
  std::vector<std::int64_t> places;
  for (const RawDocument& document : read_all(*reader)) {
    if (reader->text_of(document)) {
      places.push_back(document.place);
    }
  }
  EXPECT_THAT(places, ElementsAre(2, 4));
}

TEST_F(Corpus, AByteOrderMarkIsNotText) {
  EXPECT_THAT(read("a.txt", "\xef\xbb\xbfone"), ElementsAre("one"));
  EXPECT_THAT(read("a.txt", "\xef\xbb"), ElementsAre("\xef\xbb"));
  EXPECT_THAT(read("a.txt", "one\xef\xbb\xbf"), ElementsAre("one\xef\xbb\xbf"));
  EXPECT_THAT(read("a.jsonl", "\xef\xbb\xbf{\"text\": \"one\"}"), ElementsAre("one"));
}

TEST_F(Corpus, CompressedFilesReadLikePlainOnes) {
  const std::string text = random_text(1'000'000, 1);
  const std::string line = nlohmann::json{{"text", text}}.dump() + "\n";
  for (const auto& [extension, pack] :
       {std::pair{".gz", +[](std::string_view bytes) { return gzip(bytes); }},
        std::pair{".zst", +[](std::string_view bytes) { return zstd(bytes); }}}) {
    const std::string name = extension;
    EXPECT_TRUE(read("a.txt" + name, pack(text)) == Texts{text}) << name;
    EXPECT_TRUE(read("a.jsonl" + name, pack(line + line)) == (Texts{text, text})) << name;
    // Several members or frames, one of them empty, and a line that goes over their edge.
    const std::string_view whole = line;
    const std::string several =
        pack(line) + pack("") + pack(whole.substr(0, 1000)) + pack(whole.substr(1000));
    EXPECT_TRUE(read("a.jsonl" + name, several) == (Texts{text, text})) << name;
  }
}

TEST_F(Corpus, ZstdWindowsMayBeLarge) {
  for (const int window_log : {27, 28}) {
    EXPECT_THAT(read("a.txt.zst", zstd("one", window_log)), ElementsAre("one"));
  }
}

TEST_F(Corpus, PositionIsThatInTheCompressedFile) {
  const std::string text = random_text(3'000'000, 2);
  for (const auto& [name, packed] : {std::pair{"a.txt", text}, std::pair{"a.txt.gz", gzip(text)},
                                     std::pair{"a.txt.zst", zstd(text)}}) {
    const auto reader = open_documents(write(name, packed), CorpusFormat{});
    std::vector<RawDocument> batch;
    reader->read(batch, 1);
    EXPECT_GT(reader->position(), static_cast<std::int64_t>(packed.size() / 4)) << name;
    EXPECT_LT(reader->position(), static_cast<std::int64_t>(packed.size())) << name;
    read_all(*reader);
    EXPECT_EQ(reader->position(), static_cast<std::int64_t>(packed.size())) << name;
  }
}

TEST_F(Corpus, TextDoesNotDependOnHowItsBytesArrive) {
  const CorpusFormat format{.delimiter = "\n--\n"};
  std::string content;
  Texts expected;
  for (std::uint64_t i = 0; i < 200; ++i) {
    std::string text = random_text(i * i % 300, i, {"a", "-", "--", "b"});
    std::replace(text.begin(), text.end(), '\n', ' ');
    if (text.size() > 0) {
      expected.push_back(text);
    }
    // Beside the newline that the delimiter has itself, one more of the document may go with it.
    content += (i > 0 ? "\n--\n\n" : "") + text + (text.size() > 0 ? "\n" : "");
  }
  expected.back() += '\n';
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const std::size_t batch = seed % 3 == 0 ? 1 : 100 * seed;
    const auto reader =
        read_text(std::make_unique<Dribble>(content, seed, seed % 2 == 0 ? 3 : 700), "a", format);
    ASSERT_EQ(texts_in(*reader, batch), expected) << "seed " << seed;
  }
}

TEST_F(Corpus, LinesDoNotDependOnHowTheirBytesArrive) {
  std::string content = "\xef\xbb\xbf";
  Texts expected;
  for (std::uint64_t i = 0; i < 200; ++i) {
    expected.push_back(random_text(i * i % 300, i));
    content += nlohmann::json{{"text", expected.back()}}.dump() + (i % 3 == 0 ? "\r\n" : "\n\n");
  }
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const std::size_t batch = seed % 3 == 0 ? 1 : 100 * seed;
    const auto reader = read_jsonl(
        std::make_unique<Dribble>(content, seed, seed % 2 == 0 ? 3 : 700), "a", CorpusFormat{});
    ASSERT_EQ(texts_in(*reader, batch), expected) << "seed " << seed;
  }
}

TEST_F(Corpus, LongTextComesInPiecesCutWhereTheTokenizerCuts) {
  const Texts expected{random_text(5'000'000, 1), "short", random_text(2'500'000, 2)};
  const std::string content =
      expected[0] + "\n<|endoftext|>\n" + expected[1] + "<|endoftext|>" + expected[2];
  const auto reader = open_documents(write("a.txt", content), kDelimited);
  const auto pieces = read_all(*reader);
  EXPECT_TRUE(texts_of(*reader, pieces) == expected);
  EXPECT_THAT(pieces.size(), testing::AllOf(testing::Ge(9U), testing::Le(10U)));
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    EXPECT_LE(pieces[i].content.size(), 1U << 20);
    EXPECT_EQ(pieces[i].continues, i > 0 && pieces[i].place == pieces[i - 1].place);
    if (pieces[i].continues) {
      // The text around the edge has the same pieces with the cut as without.
      const std::string before = pieces[i - 1].content.substr(pieces[i - 1].content.size() - 500);
      const std::string both = before + pieces[i].content.substr(0, 100);
      EXPECT_EQ(last_safe_cut(both.substr(0, before.size() + 1)), before.size());
      std::size_t at = 0;
      while (at < before.size()) {
        at += first_piece(std::string_view(both).substr(at));
      }
      EXPECT_EQ(at, before.size());
    }
  }

  // The same pieces, however the bytes arrive and whatever the batch.
  const auto again =
      read_all(*read_text(std::make_unique<Dribble>(content, 5, 100'000), "a", kDelimited), 1);
  ASSERT_EQ(again.size(), pieces.size());
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    EXPECT_TRUE(again[i].content == pieces[i].content) << i;
    EXPECT_EQ(again[i].continues, pieces[i].continues);
  }
}

TEST_F(Corpus, ADelimiterIsFoundWhereverAPieceWouldEnd) {
  constexpr std::size_t kPiece = 1 << 20;
  const CorpusFormat format{.delimiter = "<end of text>"};
  const std::string text = random_text(kPiece - 30, 1);
  for (std::size_t size = kPiece - 20; size < kPiece + 5; ++size) {
    std::string first = text;
    first.resize(size, 'x');
    const auto reader = read_text(
        std::make_unique<Dribble>(first + "\n<end of text>\nsecond", size, kPiece), "a", format);
    ASSERT_TRUE(texts_in(*reader) == (Texts{first, "second"})) << size;
  }
}

TEST_F(Corpus, TextWithoutSpacesStaysWhole) {
  const CorpusFormat format{.longest = 5'000'000};
  const std::string text(4'000'000, 'x');
  const auto reader = open_documents(write("a.txt", text + " y" + text), format);
  const auto pieces = read_all(*reader);
  EXPECT_TRUE(texts_of(*reader, pieces) == Texts{text + " y" + text});
  EXPECT_EQ(pieces.at(0).content.size(), text.size());
  EXPECT_EQ(pieces.size(), 2U);
}

TEST_F(Corpus, ManyThreadsMayParse) {
  std::string content;
  Texts expected;
  for (std::uint64_t i = 0; i < 500; ++i) {
    expected.push_back(random_text(10 + i * 7, i));
    content += nlohmann::json{{"id", i}, {"text", expected.back()}}.dump() + "\n";
  }
  const auto reader = open_documents(write("a.jsonl", content), CorpusFormat{});
  const auto documents = read_all(*reader);
  std::latch together(4);
  std::vector<std::future<bool>> threads;
  for (int i = 0; i < 4; ++i) {
    threads.push_back(std::async(std::launch::async, [&] {
      together.arrive_and_wait();
      for (int round = 0; round < 20; ++round) {
        if (texts_of(*reader, documents) != expected) {
          return false;
        }
      }
      return true;
    }));
  }
  for (auto& thread : threads) {
    EXPECT_TRUE(thread.get());
  }
}

TEST_F(Corpus, ReadsTheSharedText) {
  const std::filesystem::path path = CAROPE_SOURCE_DIR "/../shared/data/edu/val.jsonl.zst";
  if (!std::filesystem::exists(path)) {
    GTEST_SKIP() << path << " is not there";
  }
  std::size_t bytes = 0;
  const Texts texts = texts_in(*open_documents(path, CorpusFormat{}));
  for (const std::string& text : texts) {
    bytes += text.size();
  }
  EXPECT_EQ(texts.size(), 287U);
  EXPECT_EQ(bytes, 5'643'657U);  // by Python's json
}

}  // namespace
}  // namespace carope::test
