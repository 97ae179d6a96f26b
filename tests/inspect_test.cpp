// What is counted of a shard, against a count by hand.
#include "data/shards/inspect.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace carope::test {
namespace {

using testing::ElementsAre;
using testing::Pair;

constexpr TokenId kEnd = 9;

MATCHER_P3(IsBin, lowest, highest, documents, "") {
  return arg.lowest == lowest && arg.highest == highest && arg.documents == documents;
}

TEST(CountTokens, CountsDocumentsByTheirFirstToken) {
  const std::vector<TokenId> tokens{kEnd, 1, 2, kEnd, kEnd, 3, kEnd, 4, 5, 6, 7, 8, 60000, 1, 2};
  const TokenStatistics statistics = count_tokens(tokens, kEnd, 3);
  EXPECT_EQ(statistics.tokens, 15);
  EXPECT_EQ(statistics.highest, 60000);
  EXPECT_EQ(statistics.documents, 4);
  EXPECT_FALSE(statistics.begins_inside);
  EXPECT_THAT(statistics.lengths, ElementsAre(Pair(1, 1), Pair(2, 1), Pair(3, 1), Pair(9, 1)));
  EXPECT_DOUBLE_EQ(statistics.mean_length(), 3.75);
  EXPECT_EQ(statistics.median_length(), 2);
  EXPECT_EQ(statistics.longest(), 9);
  EXPECT_THAT(statistics.first_documents,
              ElementsAre(ElementsAre(kEnd, 1, 2), ElementsAre(kEnd), ElementsAre(kEnd, 3)));
  EXPECT_THAT(statistics.histogram(),
              ElementsAre(IsBin(1, 1, 1), IsBin(2, 3, 2), IsBin(4, 7, 0), IsBin(8, 15, 1)));
}

TEST(CountTokens, KnowsADocumentThatBeganBefore) {
  const std::vector<TokenId> tokens{1, 2, 3, 4, 5, kEnd, 1, 2, 3, 4, 5, kEnd, 1, 2, 3, 4, 5, 6, 7};
  const TokenStatistics statistics = count_tokens(tokens, kEnd, 1);
  EXPECT_TRUE(statistics.begins_inside);
  EXPECT_EQ(statistics.documents, 3);
  EXPECT_EQ(statistics.median_length(), 6);
  EXPECT_THAT(statistics.first_documents, ElementsAre(ElementsAre(1, 2, 3, 4, 5)));
  EXPECT_THAT(statistics.histogram(), ElementsAre(IsBin(4, 7, 2), IsBin(8, 15, 1)))
      << "no bins before the shortest";
}

TEST(CountTokens, CountsNoDocumentsWithoutAnEndOfText) {
  const std::vector<TokenId> tokens{3, 1, 2};
  const TokenStatistics statistics = count_tokens(tokens, std::nullopt, 5);
  EXPECT_EQ(statistics.highest, 3);
  EXPECT_EQ(statistics.documents, 0);
  EXPECT_EQ(statistics.mean_length(), 0.0);
  EXPECT_EQ(statistics.median_length(), 0);
  EXPECT_EQ(statistics.longest(), 0);
  EXPECT_TRUE(statistics.histogram().empty());
  EXPECT_EQ(count_tokens({}, kEnd, 5).documents, 0);
}

TEST(GuessEndOfText, TakesGpt2sIfItOccurs) {
  EXPECT_EQ(guess_end_of_text(std::vector<TokenId>{1, 50256, 2}), 50256);
  EXPECT_EQ(guess_end_of_text(std::vector<TokenId>{1, 50257, 2}), std::nullopt);
}

TEST(OneLine, ShowsWhatATerminalWouldActOn) {
  EXPECT_EQ(one_line("a\nb\x1b[2J\x7f\xc3\xa9 \\"), "a\\nb\\x1b[2J\\x7f\xc3\xa9 \\");
}

}  // namespace
}  // namespace carope::test
