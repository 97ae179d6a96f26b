// From logits to text: tokens are drawn as often as they should be, and shown in whole characters.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "generate/sampler.h"
#include "generate/vocabulary.h"
#include "generate/whole_characters.h"
#include "support/errors.h"

namespace carope::test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::vector<TokenId> first_tokens(std::size_t count) {
  std::vector<TokenId> ids(count);
  std::iota(ids.begin(), ids.end(), TokenId{0});
  return ids;
}

/// How often each of the tokens is picked in many draws.
std::vector<double> frequencies(const SamplerConfig& config, const std::vector<float>& logits,
                                int draws) {
  Sampler sampler(config, first_tokens(logits.size()));
  std::vector<double> counts(logits.size());
  for (int i = 0; i < draws; ++i) {
    counts[sampler.pick(logits, i)] += 1.0;
  }
  return counts;
}

/// The tokens that are ever picked.
std::vector<std::size_t> picked(const SamplerConfig& config, const std::vector<float>& logits) {
  const std::vector<double> counts = frequencies(config, logits, 2000);
  std::vector<std::size_t> ids;
  for (std::size_t id = 0; id < counts.size(); ++id) {
    if (counts[id] > 0.0) {
      ids.push_back(id);
    }
  }
  return ids;
}

double chi_square(const std::vector<double>& counts, const std::vector<double>& weights) {
  const double draws = std::accumulate(counts.begin(), counts.end(), 0.0);
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  double sum = 0.0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const double expected = draws * weights[i] / total;
    sum += expected > 0.0 ? (counts[i] - expected) * (counts[i] - expected) / expected : counts[i];
  }
  return sum;
}

TEST(Sampler, DrawsAsOftenAsTheSoftmaxSays) {
  const std::vector<float> logits{1000.0F, 1001.5F, 999.0F, 1000.7F, 1000.0F, 996.0F, 1001.0F};
  for (const double temperature : {0.5, 1.0, 2.0}) {
    std::vector<double> weights;
    for (const float logit : logits) {
      weights.push_back(std::exp((static_cast<double>(logit) - 1000.0) / temperature));
    }
    // 6 degrees of freedom: one seed in a thousand exceeds 22.5.
    const std::vector<double> all = frequencies({.temperature = temperature}, logits, 40000);
    EXPECT_LT(chi_square(all, weights), 22.5) << temperature;
    const SamplerConfig cut{.temperature = temperature, .top_k = 3};
    weights[0] = weights[2] = weights[4] = weights[5] = 0.0;
    EXPECT_LT(chi_square(frequencies(cut, logits, 40000), weights), 22.5) << temperature;
  }
}

TEST(Sampler, DrawsFromEveryBlockOfManyLogits) {
  // They are summed 64 at a time: weight in the first, the second and the last of four blocks.
  std::vector<float> logits(200, -60.0F);
  logits[10] = 1.0F;
  logits[63] = logits[64] = 0.0F;
  logits[100] = 1.5F;
  logits[192] = logits[199] = 0.5F;
  std::vector<double> weights;
  for (const float logit : logits) {
    weights.push_back(std::exp(static_cast<double>(logit)));
  }
  // 5 degrees of freedom, as the others have no weight: one seed in a thousand exceeds 20.5.
  EXPECT_LT(chi_square(frequencies({}, logits, 40000), weights), 20.5);
  logits[10] = logits[100];
  EXPECT_THAT(picked({.temperature = 0.0}, logits), ElementsAre(10));
}

TEST(Sampler, LeavesAPickToTheDeviceWhereThatCanMakeIt) {
  const auto leaves = [](const SamplerConfig& config, std::vector<TokenId> allowed) {
    return Sampler(config, std::move(allowed)).choice().has_value();
  };
  EXPECT_TRUE(leaves({}, {4, 5, 6}));
  EXPECT_TRUE(leaves({.top_k = 3}, {4, 5, 6}));
  EXPECT_FALSE(leaves({.top_k = 2}, {4, 5, 6}));
  EXPECT_FALSE(leaves({.top_p = 0.9}, {4, 5, 6}));
  EXPECT_TRUE(leaves({.temperature = 0.0}, {4, 5, 6}));
  EXPECT_TRUE(leaves({.temperature = 0.0, .top_k = 2, .top_p = 0.9}, {4, 5, 6}));
  EXPECT_FALSE(leaves({.temperature = 0.0}, {4, 6}));
  const TokenChoice choice = Sampler({.temperature = 0.5}, {4, 5, 6}).choice().value();
  EXPECT_EQ(choice.first, 4);
  EXPECT_EQ(choice.count, 3);
  EXPECT_EQ(choice.temperature, 0.5);
}

TEST(Sampler, NamesTheFirstLogitThatIsNotFinite) {
  std::vector<float> logits(1000, 1.0F);
  logits[2] = logits[700] = logits[800] = std::numeric_limits<float>::quiet_NaN();
  std::vector<TokenId> allowed = first_tokens(970);
  allowed.erase(allowed.begin(), allowed.begin() + 5);
  for (const double temperature : {0.0, 1.0}) {
    Sampler sampler({.temperature = temperature}, allowed);
    EXPECT_THAT(message_of<Error>([&] { sampler.pick(logits, 3); }),
                HasSubstr("the logit of token 700 at place 3 is nan"));
  }
}

TEST(Sampler, KeepsTheMostLikelyAndOfEqualOnesTheFirst) {
  const std::vector<float> logits{1.0F, 2.0F, 2.0F, 0.0F, 2.0F, 1.0F};
  EXPECT_THAT(picked({.top_k = 1}, logits), ElementsAre(1));
  EXPECT_THAT(picked({.top_k = 2}, logits), ElementsAre(1, 2));
  EXPECT_THAT(picked({.top_k = 4}, logits), ElementsAre(0, 1, 2, 4));
  EXPECT_THAT(picked({.top_k = 100}, logits), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(picked({}, logits), ElementsAre(0, 1, 2, 3, 4, 5));
}

TEST(Sampler, KeepsTheFewestThatHaveTheProbability) {
  const std::vector<float> equal(8, 3.0F);
  EXPECT_THAT(picked({.top_p = 0.25}, equal), ElementsAre(0, 1));  // exactly, so no third
  EXPECT_THAT(picked({.top_p = 0.26}, equal), ElementsAre(0, 1, 2));
  EXPECT_THAT(picked({.top_p = 1e-9}, equal), ElementsAre(0));
  std::vector<float> logits;
  for (const double probability : {0.05, 0.4, 0.15, 0.3, 0.1}) {
    logits.push_back(static_cast<float>(std::log(probability)));
  }
  EXPECT_THAT(picked({.top_p = 0.39}, logits), ElementsAre(1));
  EXPECT_THAT(picked({.top_p = 0.41}, logits), ElementsAre(1, 3));
  EXPECT_THAT(picked({.top_p = 0.69}, logits), ElementsAre(1, 3));
  EXPECT_THAT(picked({.top_p = 0.71}, logits), ElementsAre(1, 2, 3));
  EXPECT_THAT(picked({.top_p = 0.96}, logits), ElementsAre(0, 1, 2, 3, 4));
  // Half the temperature squares them: 56 % and 32 % for the first two.
  EXPECT_THAT(picked({.temperature = 0.5, .top_p = 0.55}, logits), ElementsAre(1));
  EXPECT_THAT(picked({.temperature = 0.5, .top_p = 0.87}, logits), ElementsAre(1, 3));
  // 1 degree of freedom: one seed in a thousand exceeds 10.8.
  const auto counts = frequencies({.temperature = 0.5, .top_p = 0.6}, logits, 40000);
  EXPECT_LT(chi_square(counts, {0.0, 0.16, 0.0, 0.09, 0.0}), 10.8);
  // First the two of 0.4 and 0.3, of which 0.4 is 57 %.
  EXPECT_THAT(picked({.top_k = 2, .top_p = 0.56}, logits), ElementsAre(1));
  EXPECT_THAT(picked({.top_k = 2, .top_p = 0.58}, logits), ElementsAre(1, 3));
}

TEST(Sampler, IsGreedyWithoutTemperatureAndSafeNearIt) {
  const std::vector<float> logits{-3e38F, 3e38F, 3e38F, 0.0F};
  EXPECT_THAT(picked({.temperature = 0.0}, logits), ElementsAre(1));
  EXPECT_THAT(picked({.temperature = 1e-300}, logits), ElementsAre(1, 2));
  EXPECT_THAT(picked({.temperature = 1e300}, logits), ElementsAre(0, 1, 2, 3));
  Sampler two({.temperature = 0.0}, {0, 3});
  EXPECT_EQ(two.pick(logits, 0), 3);  // the likelier ones are not allowed
}

TEST(Sampler, RefusesWhatMakesNoSense) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), kInfinity, -kInfinity}) {
    Sampler sampler({}, {0, 1});
    EXPECT_THAT(message_of<Error>([&] {
                  sampler.pick(std::vector<float>{1.0F, bad}, 17);
                }),
                AllOf(HasSubstr("token 1 at place 17 is "), HasSubstr("earlier checkpoint")));
    EXPECT_EQ(Sampler({}, {0}).pick(std::vector<float>{1.0F, bad}, 17), 0);
  }
  const auto message = [](const SamplerConfig& config) {
    return message_of<ConfigError>([&] { Sampler(config, {0}); });
  };
  EXPECT_THAT(message({.temperature = -1.0}), HasSubstr("temperature = -1 is not possible"));
  EXPECT_THAT(message({.temperature = std::nan("")}), HasSubstr("temperature = nan"));
  EXPECT_THAT(message({.top_k = -1}), HasSubstr("top-k = -1"));
  EXPECT_THAT(message({.top_p = 0.0}), HasSubstr("top-p = 0"));
  EXPECT_THAT(message({.top_p = 2.0}), HasSubstr("top-p = 2"));
  EXPECT_THAT(message({.top_p = std::nan("")}), HasSubstr("top-p = nan"));
}

TEST(WholeCharacters, AreHeldBackUntilTheyAreWhole) {
  const std::string text = "aé€😀b";
  WholeCharacters characters;
  std::vector<std::string> shown;
  for (const char byte : text) {
    if (std::string whole = characters.add({&byte, 1}); !whole.empty()) {
      shown.push_back(std::move(whole));
    }
  }
  EXPECT_THAT(shown, ElementsAre("a", "é", "€", "😀", "b"));
  EXPECT_EQ(characters.add("x\xF0\x9F"), "x");
  EXPECT_EQ(characters.add("\x98"), "");
  EXPECT_EQ(characters.finish(), "\xF0\x9F\x98");
  EXPECT_EQ(characters.finish(), "");
  // What is no UTF-8 does not wait for more.
  EXPECT_EQ(characters.add("\xC3(\xFF"), "\xC3(\xFF");
  EXPECT_EQ(characters.add("\x80\x80\x80\x80"), "\x80\x80\x80\x80");
  EXPECT_EQ(characters.add("é\x80"), "é\x80");
}

TEST(Vocabulary, KnowsWhatStandsForSomething) {
  TokenizerDefinition definition;
  for (int byte = 0; byte < 256; ++byte) {
    definition.tokens.emplace_back(1, static_cast<char>(byte));
  }
  definition.specials = {{std::string(kEndOfText), 300}};
  const Tokenizer gaps(definition, "test");
  std::vector<TokenId> expected = first_tokens(256);
  expected.push_back(300);
  EXPECT_EQ(known_tokens(gaps), expected);
  EXPECT_THAT(prompt_tokens(gaps, "az"), ElementsAre(300, 'a', 'z'));
  EXPECT_THAT(prompt_tokens(gaps, ""), ElementsAre(300));
}

}  // namespace
}  // namespace carope::test
