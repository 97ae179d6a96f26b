// Parquet files, written by data/make_parquet.py.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/file.h"
#include "data/corpus/parquet.h"
#include "support/corpus_files.h"

namespace carope::test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using NoParquet = Corpus;

TEST_F(NoParquet, SaysHowToGetIt) {
  if (reads_parquet()) {
    GTEST_SKIP() << "this build reads Parquet";
  }
  EXPECT_THAT(complaint("a.parquet", "PAR1"),
              AllOf(HasSubstr("a.parquet"), HasSubstr("this build reads none"),
                    HasSubstr("pip install pyarrow"), HasSubstr("libparquet-dev")));
}

class Parquet : public Corpus {
 protected:
  void SetUp() override {
    if (!reads_parquet()) {
      GTEST_SKIP() << "this build reads no Parquet";
    }
    Corpus::SetUp();
  }

  static std::filesystem::path fixture(const std::string& name) {
    return std::filesystem::path(CAROPE_SOURCE_DIR "/tests/data") / name;
  }

  /// The text of a row as make_parquet.py writes it.
  static std::string text_of_row(int row) {
    std::string text;
    for (int i = 0; i < row; ++i) {
      text += fmt::format("Row {} says it {} times, café 木.\n", row, i);
    }
    return text;
  }
};

TEST_F(Parquet, ReadsTheTextOfFineWebEdu) {
  for (const char* name : {"fineweb_snappy.parquet", "fineweb_zstd.parquet"}) {
    for (const std::size_t batch : {1, 300, 1 << 20}) {
      const auto reader = open_documents(fixture(name), CorpusFormat{});
      EXPECT_EQ(reader->position(), 0);
      const auto documents = read_all(*reader, batch);
      EXPECT_EQ(reader->position(),
                static_cast<std::int64_t>(std::filesystem::file_size(fixture(name))));
      std::size_t next = 0;
      for (int row = 1; row < 22; ++row) {  // 23 rows, of which the first and last have no text
        if (row != 7 && row != 8) {
          ASSERT_LT(next, documents.size());
          EXPECT_EQ(documents[next].place, row);
          EXPECT_EQ(reader->text_of(documents[next]), text_of_row(row));
          ++next;
        }
      }
      EXPECT_EQ(next, documents.size());
    }
  }
}

TEST_F(Parquet, ReadsAnyColumnOfText) {
  const Texts urls =
      texts_in(*open_documents(fixture("fineweb_snappy.parquet"), {.text_field = "url"}));
  ASSERT_EQ(urls.size(), 23U);
  EXPECT_EQ(urls[22], "https://example.org/22");
  Texts expected;
  for (int i = 0; i < 6; ++i) {
    expected.insert(expected.end(), {"one", "two", "one"});
  }
  EXPECT_EQ(texts_in(*open_documents(fixture("dictionary.parquet"), CorpusFormat{})), expected);
  EXPECT_THAT(texts_in(*open_documents(fixture("required.parquet"), CorpusFormat{})),
              ElementsAre("never", "null"));
}

TEST_F(Parquet, ComplainsOfColumnsThatAreNotText) {
  EXPECT_THAT(complaint(fixture("no_text.parquet")),
              AllOf(HasSubstr("no_text.parquet has no column \"text\""),
                    HasSubstr("\"id\", \"dump\", \"url\""), HasSubstr("--text-field")));
  EXPECT_THAT(complaint(fixture("numbers.parquet")),
              AllOf(HasSubstr("numbers.parquet: the column \"text\" is of type INT64, not text"),
                    HasSubstr("--text-field")));
  EXPECT_THAT(complaint(fixture("lists.parquet")), HasSubstr("a list or a structure"));
}

TEST_F(Parquet, ComplainsOfFilesWithoutDocuments) {
  for (const char* name : {"all_null.parquet", "no_rows.parquet"}) {
    EXPECT_THAT(complaint(fixture(name)), AllOf(HasSubstr(name), HasSubstr("holds no documents")));
  }
}

TEST_F(Parquet, ComplainsOfWhatIsNoParquet) {
  const std::string whole = read_file(fixture("fineweb_snappy.parquet"));
  for (const std::string& content : {std::string(), std::string("text"), std::string(5000, 'x'),
                                     whole.substr(0, 1000), whole.substr(0, whole.size() - 1)}) {
    EXPECT_THAT(complaint("a.parquet", content),
                AllOf(HasSubstr("a.parquet cannot be read as Parquet, at its footer: "),
                      HasSubstr("get it or write it again")));
  }
}

TEST_F(Parquet, ComplainsOfDamagedPages) {
  for (const char* name : {"fineweb_snappy.parquet", "fineweb_zstd.parquet"}) {
    std::string content = read_file(fixture(name));
    content[100] = static_cast<char>(content[100] ^ 0x55);
    EXPECT_THAT(complaint("a.parquet", content),
                AllOf(HasSubstr("a.parquet cannot be read as Parquet, at row 0: "),
                      HasSubstr("get it or write it again")))
        << name;
  }
}

TEST_F(Parquet, DamageNeverPassesForText) {
  Texts expected;
  for (int row = 1; row < 22; ++row) {
    if (row != 7 && row != 8) {
      expected.push_back(text_of_row(row));
    }
  }
  expect_no_wrong_text("a.parquet", read_file(fixture("fineweb_zstd.parquet")), expected, 7);
}

}  // namespace
}  // namespace carope::test
