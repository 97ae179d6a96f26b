// Training a tokenizer, against the trainer of Hugging Face tokenizers, which learned
// tests/data/small/tokenizer.json from the text beside it (tests/golden/make_tokens.py).
#include "data/tokenizer/tokenizer_training.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "core/file.h"
#include "data/tokenizer/encoder.h"
#include "support/folder.h"

namespace carope::test {
namespace {

const std::string kSmall = CAROPE_SOURCE_DIR "/tests/data/small";

Tokenizer train(const std::vector<std::string>& texts, std::int64_t vocabulary) {
  PieceCounter pieces;
  for (const std::string& text : texts) {
    PieceCounter more;
    more.add(text);
    pieces.add(std::move(more));
  }
  return train_tokenizer(pieces, vocabulary);
}

std::vector<std::string> merges_of(const Tokenizer& tokenizer) {
  std::vector<std::string> merges;
  for (const Merge& merge : tokenizer.definition().merges) {
    merges.push_back(std::string(tokenizer.text_of(merge.left)) + "|" +
                     std::string(tokenizer.text_of(merge.right)));
  }
  return merges;
}

TEST(TokenizerTraining, LearnsWhatHuggingFaceLearns) {
  const Tokenizer ours = train({read_file(kSmall + "/training.txt")}, 1024);
  const Tokenizer theirs = Tokenizer::load(kSmall + "/tokenizer.json");
  EXPECT_EQ(ours.size(), 1024);
  EXPECT_EQ(merges_of(ours), merges_of(theirs));
  EXPECT_EQ(ours.fingerprint(), theirs.fingerprint());
}

TEST(TokenizerTraining, DoesNotDependOnTheOrderOfTexts) {
  const std::vector<std::string> texts{"the cat sat on the mat", "a cat and a hat", "that is that"};
  const Tokenizer one = train({texts[0], texts[1], texts[2]}, 280);
  const Tokenizer other = train({texts[2], texts[0], texts[1]}, 280);
  EXPECT_GT(one.definition().merges.size(), 5);
  EXPECT_EQ(merges_of(one), merges_of(other));
}

TEST(TokenizerTraining, BreaksTiesByTheLowestIds) {
  // "ab" and "cd" are equally frequent; then " ab" and " cd".
  const Tokenizer tokenizer = train({"cd ab cd ab"}, 260);
  EXPECT_THAT(merges_of(tokenizer), testing::ElementsAre("a|b", "c|d", " |ab"));
}

TEST(TokenizerTraining, StopsWhereNoPairOccursTwice) {
  const Tokenizer tokenizer = train({"xyz"}, 1000);
  EXPECT_EQ(tokenizer.size(), 257);
  EXPECT_EQ(tokenizer.end_of_text(), 256);
  EXPECT_EQ(train({}, 257).size(), 257);
}

TEST(TokenizerTraining, LearnsRunsOfOneLetter) {
  const Tokenizer tokenizer = train({std::string(5000, 'a'), std::string(1 << 20, 'b')}, 262);
  // 4 parts of 1 024 and one of 904 letters "a"; 1 024 parts of 1 024 letters "b".
  EXPECT_THAT(merges_of(tokenizer),
              testing::ElementsAre("b|b", "bb|bb", "bbbb|bbbb", "bbbbbbbb|bbbbbbbb",
                                   std::string(16, 'b') + "|" + std::string(16, 'b')));
}

TEST(TokenizerTraining, SavesWhatLoadsAgain) {
  const TemporaryFolder folder;
  const Tokenizer tokenizer = train({read_file(kSmall + "/training.txt")}, 700);
  save_tokenizer(tokenizer, folder / "tokenizer.json");
  const Tokenizer loaded = Tokenizer::load(folder.path());
  EXPECT_EQ(merges_of(loaded), merges_of(tokenizer));
  EXPECT_EQ(loaded.fingerprint(), tokenizer.fingerprint());
  EXPECT_EQ(loaded.end_of_text(), 699);
}

TEST(TokenizerTraining, RefusesImpossibleVocabularies) {
  EXPECT_THROW(train({"a"}, 256), ConfigError);
  EXPECT_THROW(train({"a"}, 65537), ConfigError);
}

}  // namespace
}  // namespace carope::test
