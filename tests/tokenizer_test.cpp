// The tokenizer against tiktoken and Hugging Face tokenizers: tests/golden/make_tokens.py has them
// encode the same texts.
#include "data/tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/file.h"
#include "core/hash.h"
#include "data/corpus/corpus.h"
#include "data/tokenizer/encoder.h"
#include "support/deep_json.h"
#include "support/folder.h"

namespace carope::test {
namespace {

using Json = nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

const std::string kSmall = CAROPE_SOURCE_DIR "/tests/data/small";
const std::string kGpt2 = CAROPE_SOURCE_DIR "/../shared/data/gpt2";
const std::string kValidation = CAROPE_SOURCE_DIR "/../shared/data/edu/val.jsonl.zst";

#define SKIP_WITHOUT(path) \
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not here"

const Json& golden() {
  static const Json kGolden = Json::parse(read_file(CAROPE_SOURCE_DIR "/tests/golden/tokens.json"));
  return kGolden;
}

std::vector<TokenId> encode(const Tokenizer& tokenizer, std::string_view text,
                            Specials specials = Specials::kAsText) {
  std::vector<TokenId> ids;
  Encoder(tokenizer).encode(text, ids, specials);
  return ids;
}

std::string digest(std::span<const TokenId> ids) {
  return sha256({reinterpret_cast<const char*>(ids.data()), ids.size_bytes()});
}

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  }
  return bytes;
}

/// The text of a case: parts, each some number of times.
std::string text_of(const Json& parts) {
  std::string text;
  for (const auto& [part, count] : parts.get<std::vector<std::pair<std::string, int>>>()) {
    const std::string bytes = from_hex(part);
    for (int i = 0; i < count; ++i) {
      text += bytes;
    }
  }
  return text;
}

void append_utf8(std::string& text, std::uint32_t point) {
  if (point < 0x80) {
    text += static_cast<char>(point);
  } else if (point < 0x800) {
    text += {static_cast<char>(0xc0 | point >> 6), static_cast<char>(0x80 | (point & 0x3f))};
  } else if (point < 0x10000) {
    text += {static_cast<char>(0xe0 | point >> 12), static_cast<char>(0x80 | (point >> 6 & 0x3f)),
             static_cast<char>(0x80 | (point & 0x3f))};
  } else {
    text +=
        {static_cast<char>(0xf0 | point >> 18), static_cast<char>(0x80 | (point >> 12 & 0x3f)),
         static_cast<char>(0x80 | (point >> 6 & 0x3f)), static_cast<char>(0x80 | (point & 0x3f))};
  }
}

/// Every code point of a block behind a letter, a number, a mark and spaces; as in make_tokens.py.
std::string code_points_text(std::uint32_t block) {
  std::string text;
  for (std::uint32_t point = block * 4096; point < (block + 1) * 4096; ++point) {
    if (point < 0xd800 || point >= 0xe000) {
      std::string c;
      append_utf8(c, point);
      text += "a" + c + "1" + c + "!" + c + " " + c + c + "\n" + c;
    }
  }
  return text;
}

void expect_nasty_texts(const Tokenizer& tokenizer, const Json& expected) {
  ASSERT_GE(expected["cases"].size(), 100);
  Encoder encoder(tokenizer);
  for (const Json& nasty : expected["cases"]) {
    const std::string text = text_of(nasty["text"]);
    const std::string name = nasty["name"];
    std::vector<TokenId> ids;
    encoder.encode(text, ids);
    EXPECT_EQ(ids.size(), nasty["count"]) << name;
    if (nasty.contains("ids")) {
      EXPECT_EQ(ids, nasty["ids"].get<std::vector<TokenId>>()) << name;
    } else {
      EXPECT_EQ(digest(ids), nasty["sha256"]) << name;
    }
    EXPECT_TRUE(tokenizer.decode(ids) == text) << name;
    EXPECT_EQ(encode_in_parallel(tokenizer, text, Specials::kAsText, 3), ids) << name;
  }
  for (const Json& special : expected["specials"]) {
    const auto& [text, ids] = special.get<std::pair<std::string, std::vector<TokenId>>>();
    EXPECT_EQ(encode(tokenizer, text, Specials::kAsTokens), ids) << text;
    EXPECT_EQ(encode_in_parallel(tokenizer, text, Specials::kAsTokens, 3), ids) << text;
  }
}

void expect_code_points(const Tokenizer& tokenizer, const Json& digests) {
  ASSERT_EQ(digests.size(), 0x110);
  Encoder encoder(tokenizer);
  for (std::uint32_t block = 0; block < 0x110; ++block) {
    std::vector<TokenId> ids;
    encoder.encode(code_points_text(block), ids);
    EXPECT_EQ(digest(ids), digests[block]) << "from " << block * 4096;
  }
}

class SmallFiles : public testing::TestWithParam<const char*> {};

TEST_P(SmallFiles, EncodeNastyTextsAsOthersDo) {
  expect_nasty_texts(Tokenizer::load(kSmall + GetParam()), golden()["small"]);
}

TEST_P(SmallFiles, HoldTheSameVocabulary) {
  const Tokenizer tokenizer = Tokenizer::load(kSmall + GetParam());
  EXPECT_EQ(tokenizer.size(), 1024);
  EXPECT_EQ(tokenizer.end_of_text(), 1023);
  EXPECT_EQ(tokenizer.fingerprint(), Tokenizer::load(kSmall).fingerprint());
  EXPECT_EQ(tokenizer.text_of(1023), kEndOfText);
}

INSTANTIATE_TEST_SUITE_P(Tokenizer, SmallFiles,
                         testing::Values("/tokenizer.json", "/small.tiktoken", "/pair",
                                         "/pair/vocab.bpe", "/pair/encoder.json"));

/// Bytes in order, and merges of a, 1, ! and a space with each first byte of a character: they
/// happen within a piece only, so every boundary shows.
Tokenizer probe() {
  TokenizerDefinition definition;
  for (int byte = 0; byte < 256; ++byte) {
    definition.tokens.emplace_back(1, static_cast<char>(byte));
  }
  for (const char before : {'a', '1', '!', ' '}) {
    for (int lead = 0xc2; lead <= 0xf4; ++lead) {
      const auto id = static_cast<TokenId>(definition.tokens.size());
      definition.tokens.push_back({before, static_cast<char>(lead)});
      definition.merges.push_back(
          {static_cast<TokenId>(before), static_cast<TokenId>(lead), id, id});
    }
  }
  return Tokenizer(std::move(definition), "probe");
}

TEST(Tokenizer, KnowsTheClassOfEveryCodePoint) { expect_code_points(probe(), golden()["probe"]); }

TEST(Tokenizer, EncodesEveryCodePointAsOthersDo) {
  expect_code_points(Tokenizer::load(kSmall), golden()["small"]["code_points"]);
}

TEST(Tokenizer, EncodesNastyTextsAsGpt2) {
  SKIP_WITHOUT(kGpt2);
  const Tokenizer tokenizer = Tokenizer::load(kGpt2);
  EXPECT_EQ(tokenizer.size(), 50257);
  EXPECT_EQ(tokenizer.end_of_text(), 50256);
  expect_nasty_texts(tokenizer, golden()["gpt2"]);
}

TEST(Tokenizer, EncodesEveryCodePointAsGpt2) {
  SKIP_WITHOUT(kGpt2);
  expect_code_points(Tokenizer::load(kGpt2), golden()["gpt2"]["code_points"]);
}

TEST(Tokenizer, EncodesAllValidationTextAsGpt2) {
  SKIP_WITHOUT(kGpt2);
  SKIP_WITHOUT(kValidation);
  const Tokenizer tokenizer = Tokenizer::load(kGpt2);
  Encoder encoder(tokenizer);
  const Json& expected = golden()["validation"];
  const auto reader = open_documents(kValidation, {});
  std::vector<RawDocument> batch;
  std::vector<TokenId> ids;
  std::int64_t documents = 0;
  for (reader->read(batch, 1 << 20); !batch.empty(); reader->read(batch, 1 << 20)) {
    for (RawDocument& document : batch) {
      const std::size_t before = ids.size();
      const auto text = reader->text_of(std::move(document));
      ASSERT_TRUE(text.has_value());
      encoder.encode(*text, ids);
      EXPECT_EQ(tokenizer.decode(std::span(ids).subspan(before)), *text);
      ++documents;
    }
  }
  EXPECT_EQ(documents, expected["documents"]);
  EXPECT_EQ(ids.size(), expected["count"]);
  EXPECT_EQ(digest(ids), expected["sha256"]);
}

TEST(Tokenizer, TakesSpecialTokensForTextUnlessAsked) {
  const Tokenizer tokenizer = Tokenizer::load(kSmall);
  const auto as_text = encode(tokenizer, "<|endoftext|>");
  EXPECT_GT(as_text.size(), 1);
  EXPECT_EQ(tokenizer.decode(as_text), "<|endoftext|>");
  EXPECT_THAT(encode(tokenizer, "<|endoftext|>", Specials::kAsTokens), testing::ElementsAre(1023));
}

TEST(Tokenizer, FindsSpecialTokensFromLeftToRightAndTheLongestFirst) {
  TokenizerDefinition definition = Tokenizer::load(kSmall).definition();
  definition.specials = {{"<a>", 2000}, {"<a><b>", 2001}, {" <c d> ", 2002}, {"<b>", 2003}};
  const Tokenizer tokenizer(definition, "test");
  const auto x = encode(tokenizer, "x").front();
  EXPECT_THAT(encode(tokenizer, "<a><b><a>x<b> <c d> <c d> x", Specials::kAsTokens),
              testing::ElementsAreArray([&] {
                std::vector<TokenId> ids{2001, 2000, x, 2003, 2002};
                for (const TokenId id : encode(tokenizer, "<c d> x")) {
                  ids.push_back(id);
                }
                return ids;
              }()));
  std::string many;
  for (int i = 0; i < 100000; ++i) {
    many += "<a>";  // would take hours if each were found by searching the rest for "<b>"
  }
  EXPECT_EQ(encode(tokenizer, many, Specials::kAsTokens).size(), 100000);
}

TEST(Tokenizer, EncodesPartsOfATextInParallelWithoutATrace) {
  const Tokenizer tokenizer = Tokenizer::load(kSmall);
  const std::string text = read_file(kSmall + "/training.txt");
  std::string long_text;
  while (long_text.size() < (5u << 20)) {
    long_text += text;
  }
  const auto ids = encode(tokenizer, long_text);
  for (const int threads : {1, 2, 5}) {
    EXPECT_EQ(encode_in_parallel(tokenizer, long_text, Specials::kAsText, threads), ids);
  }
}

TEST(Tokenizer, TakesTimeInProportionToHostileText) {
  const Tokenizer tokenizer = Tokenizer::load(kSmall);
  const auto seconds = [&](const std::string& part, std::size_t bytes) {
    std::string text;
    while (text.size() < bytes) {
      text += part;
    }
    double best = 1e9;
    for (int i = 0; i < 3; ++i) {
      const std::clock_t start = std::clock();  // of this process: others may use the cores too
      encode(tokenizer, text);
      best = std::min(best, static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
    }
    return best;
  };
  for (const std::string part : {"a", " ", "\xff", "th", "0123456789", "'", "\xc3\xa9"}) {
    // Eight times the text in about eight times the time; a square law would take 64 times as long.
    EXPECT_LT(seconds(part, 1 << 20) / seconds(part, 1 << 17), 24) << testing::PrintToString(part);
  }
}

TEST(Tokenizer, RefusesTokensThatItDoesNotHave) {
  const Tokenizer tokenizer = Tokenizer::load(kSmall);
  EXPECT_THROW(tokenizer.decode(std::vector<TokenId>{1024}), Error);
  EXPECT_THROW(tokenizer.text_of(-1), Error);
}

/// What loading a file with this content says.
std::string refusal(const std::string& name, const std::string& content,
                    const std::string& other_name = "", const std::string& other_content = "") {
  const TemporaryFolder folder;
  write_file(folder / name, content);
  if (!other_name.empty()) {
    write_file(folder / other_name, other_content);
  }
  try {
    Tokenizer::load(folder / name);
  } catch (const FileError& error) {
    EXPECT_THAT(error.what(), HasSubstr(folder.path().string()));
    return error.what();
  }
  return "";
}

TEST(TokenizerFiles, SayWhatIsWrongWithThem) {
  EXPECT_THAT(refusal("tokenizer.json", "{\"model\": "), HasSubstr("not readable JSON"));
  EXPECT_THAT(refusal("tokenizer.json", "[]"), HasSubstr("not a Hugging Face tokenizer file"));
  EXPECT_THAT(refusal("tokenizer.json", ""), HasSubstr("not readable JSON"));
  EXPECT_THAT(refusal("tokenizer.txt", "x"), HasSubstr("is no tokenizer file"));
  EXPECT_THAT(refusal("a.tiktoken", "IQ== 0\nIg=="),
              AllOf(HasSubstr("line 2"), HasSubstr("base64")));
  EXPECT_THAT(refusal("a.tiktoken", "IQ== 0\nI*== 1\n"), HasSubstr("line 2"));
  for (const char* not_base64 :
       {"IQ=", "IQ==IQ==", "I=Q=", "I===", "====", "\t\t\t\tIQ==", "IQ==----"}) {
    EXPECT_THAT(refusal("a.tiktoken", fmt::format("{} 0\n", not_base64)),
                AllOf(HasSubstr("line 1"), HasSubstr("not a token in base64")))
        << not_base64;
  }
  EXPECT_THAT(refusal("a.tiktoken", std::string(8000, 'A') + " 0\n"),
              AllOf(HasSubstr("line 1"), HasSubstr("6000 bytes is too long")));
  EXPECT_THAT(refusal("a.tiktoken", "IQ== 70000\n"), HasSubstr("ids go up to 65535"));
  EXPECT_THAT(refusal("a.tiktoken", "IQ== -1\n"), HasSubstr("has id -1"));
  EXPECT_THAT(refusal("a.tiktoken", "IQ== 1\nIg== 1\n"), HasSubstr("another token"));
  EXPECT_THAT(refusal("a.tiktoken", "IQ== 1\nIQ== 2\n"), HasSubstr("the same bytes"));
  EXPECT_THAT(refusal("a.tiktoken", ""), HasSubstr("no token for byte 0"));
  EXPECT_THAT(refusal("vocab.bpe", "#version: 0.2\n"), HasSubstr("encoder.json does not exist"));

  const std::string encoder = read_file(kSmall + "/pair/encoder.json");
  const std::string merges = read_file(kSmall + "/pair/vocab.bpe");
  EXPECT_THAT(refusal("vocab.bpe", "#version: 0.2\na b c\n", "encoder.json", encoder),
              AllOf(HasSubstr("line 2"), HasSubstr("not two tokens")));
  EXPECT_THAT(refusal("vocab.bpe", merges + "Q Qqq\n", "encoder.json", encoder),
              AllOf(HasSubstr("line 769"), HasSubstr("'Qqq' is not in the vocabulary")));
  EXPECT_THAT(refusal("vocab.bpe", merges + "Q Q\n", "encoder.json", encoder),
              HasSubstr("merge into a token that the vocabulary does not have"));
  EXPECT_THAT(refusal("vocab.bpe", merges + merges.substr(14, merges.find('\n', 14) - 13),
                      "encoder.json", encoder),
              HasSubstr("repeats an earlier one"));
  EXPECT_THAT(refusal("vocab.bpe", merges, "encoder.json", "{\"a\": \"b\"}"),
              HasSubstr("the id of 'a' is not a number"));
  EXPECT_THAT(refusal("vocab.bpe", merges, "encoder.json", "{\"\\u4e00\": 1}"),
              HasSubstr("not written in the alphabet"));
  EXPECT_THAT(refusal("vocab.bpe", merges, "encoder.json", "[1]"), HasSubstr("not an object"));
}

TEST(TokenizerFiles, AreRefusedWhereTheyWouldSplitTextInAnotherWay) {
  const auto changed = [](const std::function<void(Json&)>& change) {
    Json file = Json::parse(read_file(kSmall + "/tokenizer.json"));
    change(file);
    return refusal("tokenizer.json", file.dump());
  };
  EXPECT_EQ(changed([](Json&) {}), "");
  EXPECT_THAT(changed([](Json& file) {
                file["normalizer"] = {{"type", "NFC"}};
              }),
              HasSubstr("normalizer"));
  EXPECT_THAT(changed([](Json& file) { file["pre_tokenizer"]["add_prefix_space"] = true; }),
              HasSubstr("add_prefix_space"));
  EXPECT_THAT(changed([](Json& file) { file["pre_tokenizer"]["use_regex"] = false; }),
              HasSubstr("GPT-2's pattern"));
  EXPECT_THAT(changed([](Json& file) {
                file["pre_tokenizer"] = {{"type", "Whitespace"}};
              }),
              HasSubstr("not ByteLevel"));
  EXPECT_THAT(changed([](Json& file) { file["model"]["type"] = "Unigram"; }),
              HasSubstr("not a plain byte-level BPE"));
  EXPECT_THAT(changed([](Json& file) { file["added_tokens"][0]["lstrip"] = true; }),
              HasSubstr("not a plain special token"));
  EXPECT_THAT(changed([](Json& file) { file["model"].erase("merges"); }), HasSubstr("merges"));
  EXPECT_THAT(changed([](Json& file) { file["added_tokens"][0]["id"] = 1e300; }),
              HasSubstr("the id of '<|endoftext|>' is not a number"));
}

TEST(TokenizerFiles, AreRefusedWhereTheyNestTooDeep) {
  for (const char* key : {"normalizer", "pre_tokenizer"}) {
    EXPECT_THAT(
        refusal("tokenizer.json", fmt::format(R"({{"model": {{}}, "{}": {}}})", key, deep_json())),
        HasSubstr("more than 64 deep"))
        << key;
  }
}

TEST(TokenizerFiles, AreRefusedWhereMergesAreMissing) {
  const std::string encoder = read_file(kSmall + "/pair/encoder.json");
  const std::string merges = read_file(kSmall + "/pair/vocab.bpe");
  const auto loaded = [&](const std::string& kept) {
    return refusal("vocab.bpe", kept, "encoder.json", encoder);
  };
  EXPECT_EQ(loaded(merges), "");
  const std::size_t first = merges.find('\n') + 1;
  for (const std::string& kept :
       {std::string(), merges.substr(0, first), merges.substr(merges.find('\n', first) + 1),
        merges.substr(0, merges.find('\n', merges.size() / 2) + 1),
        merges.substr(0, merges.rfind('\n', merges.size() - 2) + 1)}) {
    EXPECT_THAT(loaded(kept), AllOf(HasSubstr("vocab.bpe is incomplete"),
                                    HasSubstr("carope tokenizer fetch gpt2")))
        << kept.size() << " bytes";
  }
}

TEST(TokenizerFiles, MayNameSpecialTokensThatNothingMergesInto) {
  Json encoder = Json::parse(read_file(kSmall + "/pair/encoder.json"));
  for (const char* special : {"<s>", "</s>", "<pad>", "<|im_start|>"}) {
    encoder[special] = encoder.size();
  }
  EXPECT_EQ(
      refusal("vocab.bpe", read_file(kSmall + "/pair/vocab.bpe"), "encoder.json", encoder.dump()),
      "");
}

TEST(TokenizerFiles, AreRefusedWhereTwoSpecialTokensHaveOneId) {
  Json file = Json::parse(read_file(kSmall + "/tokenizer.json"));
  Json another = file["added_tokens"][0];
  another["content"] = "<a>";
  file["added_tokens"].push_back(another);
  EXPECT_THAT(refusal("tokenizer.json", file.dump()),
              AllOf(HasSubstr("has id 1023, which another token has too"),
                    HasSubstr("use the tokenizer's own files")));
}

TEST(TokenizerFiles, AreFoundInAFolder) {
  const TemporaryFolder folder;
  EXPECT_THROW(Tokenizer::load(folder.path()), FileError);
  EXPECT_THROW(Tokenizer::load(folder / "missing.json"), FileError);
  copy_tokenizer(kSmall + "/pair", folder / "copy");
  EXPECT_EQ(Tokenizer::load(folder / "copy").fingerprint(), Tokenizer::load(kSmall).fingerprint());
}

}  // namespace
}  // namespace carope::test
