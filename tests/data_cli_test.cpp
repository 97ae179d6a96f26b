// The commands that make data, as a user runs them: what they print, and what they say of mistakes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "core/file.h"
#include "data/corpus/parquet.h"
#include "support/prepared_folder.h"
#include "support/program.h"

namespace carope::test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

std::string in_quotes(const fs::path& path) { return fmt::format("'{}'", path.string()); }

class DataCli : public testing::Test {
 protected:
  fs::path write(const std::string& name, const std::string& content) const {
    return write_bytes(folder_ / name, content);
  }

  Ended prepare(const std::string& arguments, const std::string& environment = "") const {
    return run(fmt::format("data prepare --tokenizer '{}' --out {} {}", kSmallTokenizer,
                           in_quotes(folder_ / "out"), arguments),
               environment);
  }

  /// What is said of files that cannot be prepared. It leaves no shard, and returns 1.
  std::string complaint(const std::string& arguments) const {
    const Ended ended = prepare(arguments + " --shard-tokens 100");
    EXPECT_EQ(ended.status, 1) << ended.output;
    EXPECT_THAT(ended.output, StartsWith("carope: "));
    return ended.output;
  }

  std::string complaint(const std::string& name, const std::string& content) const {
    const fs::path path = write(name, content);
    const std::string said = complaint(in_quotes(path));
    EXPECT_THAT(said, HasSubstr(path.string()));
    return said;
  }

  TemporaryFolder folder_;
};

TEST_F(DataCli, PrepareSaysWhatItMade) {
  const auto input = write("a b's.jsonl", lines_of_json(random_documents(50)));
  fs::create_symlink(input, folder_ / "link.jsonl");
  fs::create_directory(folder_ / "real folder");
  fs::create_directory_symlink(folder_ / "real folder", folder_ / "out");
  const Ended ended =
      prepare("--shard-tokens 1k --val-tokens 0.5k " + in_quotes(folder_ / "link.jsonl"));
  EXPECT_EQ(ended.status, 0) << ended.output;
  const auto shards = shards_of(folder_ / "real folder");
  const std::vector<TokenId> tokens = tokens_of(random_documents(50));
  EXPECT_TRUE(joined(shards) == tokens);
  EXPECT_EQ(shards.front().name, "out_val_000000.bin");
  EXPECT_EQ(
      ended.output,
      fmt::format("{}\ntraining: {:.1f} k tokens, {} documents, {} shards\n"
                  "validation: 500 tokens, {} documents, 1 shards\n",
                  (folder_ / "out").string(), static_cast<double>(tokens.size() - 500) / 1000.0,
                  50 - shards[0].documents(), shards.size() - 1, shards[0].documents()));
  EXPECT_EQ(
      prepare("--shard-tokens 1k --val-tokens 500 " + in_quotes(folder_ / "link.jsonl")).output,
      ended.output)
      << "all was done before";
  EXPECT_EQ(run("data inspect " + in_quotes(folder_ / "out")).status, 0);
}

TEST_F(DataCli, PrepareTakesFilesForValidation) {
  const auto train = write("t.txt", "The cat sat.");
  const auto validation = write("v.txt", "The mat.");
  EXPECT_EQ(prepare("--val " + in_quotes(validation) + " " + in_quotes(train)).status, 0);
  const auto shards = shards_of(folder_ / "out");
  ASSERT_EQ(shards.size(), 2U);
  EXPECT_EQ(shards[0].tokens, tokens_of({"The mat."}));
  EXPECT_EQ(shards[1].tokens, tokens_of({"The cat sat."}));
  EXPECT_THAT(complaint("--val " + in_quotes(train) + " " + in_quotes(train)),
              AllOf(HasSubstr("t.txt is named for validation and for training")));
  const Ended both =
      prepare("--val-tokens 5 --val " + in_quotes(validation) + " " + in_quotes(train));
  EXPECT_NE(both.status, 0);
  EXPECT_THAT(both.output, AllOf(HasSubstr("--val-tokens"), HasSubstr("excludes")));
}

TEST_F(DataCli, PrepareComplainsOfUnreadableText) {
  EXPECT_THAT(complaint("a.jsonl", "{\"text\": \"x\"}\n\n{\"text\": \"y\"\n"),
              AllOf(HasSubstr("a.jsonl, line 3: this is not JSON"), HasSubstr("repair or remove")));
  EXPECT_THAT(complaint("a.jsonl", "{\"body\": \"x\"}\n"),
              AllOf(HasSubstr("line 1: there is no field \"text\", only \"body\""),
                    HasSubstr("--text-field")));
  EXPECT_THAT(complaint("a.jsonl", "{\"text\": 5}\n"),
              AllOf(HasSubstr("line 1: the field \"text\" is a number"), HasSubstr("remove")));
  for (const char* name : {"empty.txt", "empty.jsonl"}) {
    EXPECT_THAT(complaint(name, ""), AllOf(HasSubstr("holds no documents"), HasSubstr("check")));
  }
  EXPECT_THAT(complaint("empty.txt.gz", gzip("")), HasSubstr("holds no documents"));
  const std::string packed = gzip(lines_of_json(random_documents(20)));
  EXPECT_THAT(complaint("a.jsonl.gz", packed.substr(0, packed.size() - 9)),
              AllOf(HasSubstr("ends inside a gzip member, at byte "), HasSubstr("again")));
  EXPECT_THAT(complaint("a.txt.zst", "no zstd"),
              AllOf(HasSubstr("is damaged"), HasSubstr("again")));
  EXPECT_TRUE(shards_of(folder_ / "out").empty());
}

TEST_F(DataCli, PrepareComplainsOfAParquetFileWithoutText) {
  if (!reads_parquet()) {
    GTEST_SKIP() << "this build reads no Parquet";
  }
  const std::string data = CAROPE_SOURCE_DIR "/tests/data/";
  EXPECT_THAT(
      complaint(in_quotes(data + "no_text.parquet")),
      AllOf(HasSubstr("no_text.parquet has no column \"text\""), HasSubstr("--text-field")));
  EXPECT_EQ(prepare("--text-field url " + in_quotes(data + "no_text.parquet")).status, 0);
}

TEST_F(DataCli, PrepareRefusesFilesBeforeItTouchesAnything) {
  const std::string good = in_quotes(write("a.jsonl", lines_of_json(random_documents(50))));
  ASSERT_EQ(prepare("--shard-tokens 1000 " + good).status, 0);
  const auto before = identities_in(folder_ / "out");
  const auto complain = [&](const std::string& arguments) {
    const std::string said = complaint("--overwrite " + good + " " + arguments);
    EXPECT_EQ(identities_in(folder_ / "out"), before) << said;
    return said;
  };
  EXPECT_THAT(
      complain(in_quotes(folder_.path())),
      AllOf(HasSubstr(folder_.path().string() + " is a directory"), HasSubstr("name a file")));
  EXPECT_THAT(complain(in_quotes(folder_ / "no.txt")),
              AllOf(HasSubstr("no.txt does not exist"), HasSubstr("check the path")));
  EXPECT_THAT(
      complain(in_quotes(write("a.csv", "x"))),
      AllOf(HasSubstr("a.csv has a name that tells no known format"), HasSubstr("name it")));
  ASSERT_EQ(mkfifo((folder_ / "pipe.txt").c_str(), 0600), 0);
  EXPECT_THAT(complain(in_quotes(folder_ / "pipe.txt")),
              HasSubstr("pipe.txt is a device or a pipe"));
  EXPECT_THAT(complain("--name a/b"), HasSubstr("name only"));
  EXPECT_THAT(complain("--threads 5000"), HasSubstr("threads = 5000 is not possible"));
  EXPECT_THAT(complain("--val-tokens 3B"), HasSubstr("from 1 to 2147483647"));
  EXPECT_THAT(prepare("--shard-tokens 1000 " + good).output, HasSubstr("training: "));
  EXPECT_EQ(identities_in(folder_ / "out"), before);
}

TEST_F(DataCli, PrepareRefusesPlacesForShardsThatAreNone) {
  const std::string good = in_quotes(write("a.txt", "The cat sat on the mat."));
  write("out", "a file");
  EXPECT_THAT(complaint(good),
              AllOf(HasSubstr("cannot make the folder " + (folder_ / "out").string()),
                    HasSubstr("check the path")));
  EXPECT_EQ(read_file(folder_ / "out"), "a file");
  fs::remove(folder_ / "out");
  const Ended latin = prepare(in_quotes(write("caf\xe9.txt", "The cat sat on the mat.")));
  EXPECT_EQ(latin.status, 1);
  EXPECT_THAT(latin.output, AllOf(HasSubstr("manifest.json cannot be written"),
                                  HasSubstr("names of files and settings must be UTF-8")));
  EXPECT_EQ(prepare(good).status, 0) << "nothing is in its way";
}

TEST_F(DataCli, PrepareTakesLargeNumbersAsPeopleWriteThem) {
  const std::string good = in_quotes(write("a.txt", random_text(10'000, 1)));
  for (const auto& [written, tokens] : {std::pair{"1.5k", 1500},
                                        {"0.002M", 2000},
                                        {"17", 17},
                                        {"3e3", 3000},
                                        {"0.000001B", 1000}}) {
    const Ended ended = prepare(fmt::format("--overwrite --tokens {} {}", written, good));
    EXPECT_EQ(ended.status, 0) << ended.output;
    EXPECT_EQ(joined(shards_of(folder_ / "out")).size(), static_cast<std::size_t>(tokens));
  }
  for (const char* wrong :
       {"0", "-5", "many", "5X", "'1 k'", "1e30", "nan", "99999999999999999999B", "0.4", "''"}) {
    const Ended ended = prepare(fmt::format("--overwrite --tokens {} {}", wrong, good));
    EXPECT_NE(ended.status, 0) << wrong;
    EXPECT_THAT(ended.output, AllOf(HasSubstr("--tokens"), HasSubstr("e.g. 500k")));
  }
}

class TokenizerCli : public DataCli {
 protected:
  static Ended tokenizer(const std::string& command, const std::string& arguments,
                         const std::string& tokenizer = kSmallTokenizer) {
    return run("tokenizer " + command + " --tokenizer " + in_quotes(tokenizer) + " " + arguments);
  }

  static std::string line_of(std::vector<TokenId> tokens) {
    tokens.erase(tokens.begin());  // the end of text
    return fmt::format("{}\n", fmt::join(tokens, " "));
  }
};

TEST_F(TokenizerCli, EncodesFilesAndStandardInput) {
  const std::string text = "The cat sat on the mat, caf\xc3\xa9.\n\n 1234";
  const auto file = write("a text", text);
  for (const char* input : {"", "< "}) {
    const Ended ended = tokenizer("encode", input + in_quotes(file));
    EXPECT_EQ(ended.status, 0);
    EXPECT_EQ(ended.output, line_of(tokens_of({text})));
  }
}

TEST_F(TokenizerCli, DecodesWhatItEncodesByteForByte) {
  std::string all;
  for (int i = 0; i < 512; ++i) {
    all += static_cast<char>(i % 256);
  }
  for (const std::string& bytes :
       {std::string(), std::string(1, '\0'), std::string("\n"), all,
        std::string("\xff\xfe invalid \xc3 UTF-8 \xed\xa0\x80"), random_text(1'200'000, 5)}) {
    const auto file = write("bytes", bytes);
    const Ended encoded = tokenizer("encode", "--threads 3 " + in_quotes(file));
    ASSERT_EQ(encoded.status, 0);
    EXPECT_EQ(encoded.output.back(), '\n');
    EXPECT_THAT(encoded.output.substr(0, 100), Not(HasSubstr("  ")));
    const auto ids = write("ids", encoded.output);
    const Ended decoded = tokenizer("decode", in_quotes(ids));
    EXPECT_EQ(decoded.status, 0);
    EXPECT_TRUE(decoded.output == bytes) << bytes.size();
    EXPECT_TRUE(tokenizer("decode", "< " + in_quotes(ids)).output == bytes);
  }
  EXPECT_EQ(tokenizer("encode", "< /dev/null").output, "\n");
  EXPECT_EQ(tokenizer("decode", "< /dev/null").output, "");
}

TEST_F(TokenizerCli, TakesSpecialTokensForTextUnlessAsked) {
  const auto file = write("a", "cat<|endoftext|>mat");
  const std::string as_text = tokenizer("encode", in_quotes(file)).output;
  EXPECT_EQ(as_text, line_of(tokens_of({"cat<|endoftext|>mat"})));
  EXPECT_THAT(as_text, Not(HasSubstr("1023")));
  const std::string as_token = tokenizer("encode", "--special " + in_quotes(file)).output;
  EXPECT_EQ(as_token, line_of(tokens_of({"cat", "mat"})));
  for (const std::string& ids : {as_text, as_token}) {
    EXPECT_EQ(tokenizer("decode", in_quotes(write("ids", ids))).output, "cat<|endoftext|>mat");
  }
}

TEST_F(TokenizerCli, ComplainsOfWhatIsNoToken) {
  const auto complaint = [&](const std::string& ids) {
    const Ended ended = tokenizer("decode", in_quotes(write("ids", ids)));
    EXPECT_EQ(ended.status, 1) << ended.output;
    return ended.output;
  };
  EXPECT_THAT(complaint("5 17\n7x 9"), AllOf(HasSubstr("byte 5 of the input: '7x' is not a token"),
                                             HasSubstr("spaces between")));
  EXPECT_THAT(complaint("5 99999999999999999999"), HasSubstr("byte 2 of the input"));
  EXPECT_THAT(complaint("1,2"), HasSubstr("byte 0 of the input: '1,2'"));
  EXPECT_THAT(complaint("1 1024"), AllOf(HasSubstr("token 1024 is not in the vocabulary"),
                                         HasSubstr("1024 tokens"), HasSubstr("another tokenizer")));
  EXPECT_THAT(complaint("-1"), HasSubstr("token -1 is not in the vocabulary"));
  const std::string binary = complaint(std::string(100'000, '\x01'));
  EXPECT_LT(binary.size(), 400U) << "a message, not the whole input";
  EXPECT_THAT(binary, HasSubstr("\\x01"));
}

TEST_F(TokenizerCli, ComplainsOfMissingFilesAndTokenizers) {
  const Ended missing = tokenizer("encode", in_quotes(folder_ / "no"));
  EXPECT_EQ(missing.status, 1);
  EXPECT_THAT(missing.output, HasSubstr("no does not exist; check the path"));
  EXPECT_THAT(tokenizer("encode", in_quotes(folder_.path())).output, HasSubstr("is a directory"));
  const std::string cache =
      "cd " + in_quotes(folder_.path()) + " && CAROPE_CACHE=" + in_quotes(folder_ / "empty cache");
  for (const char* command :
       {"tokenizer encode --tokenizer gpt2 /dev/null",
        "tokenizer decode --tokenizer gpt2 /dev/null",
        "data prepare --tokenizer gpt2 --out x /dev/null", "data prepare --out x /dev/null"}) {
    const Ended unfetched = run(command, cache);
    EXPECT_EQ(unfetched.status, 1);
    EXPECT_THAT(unfetched.output, AllOf(HasSubstr("there is no tokenizer gpt2"),
                                        HasSubstr("carope tokenizer fetch gpt2")));
  }
  EXPECT_THAT(tokenizer("encode", "/dev/null", folder_.path()).output,
              AllOf(HasSubstr(folder_.path().string() + " holds no tokenizer"),
                    HasSubstr("tokenizer.json")));
}

TEST_F(TokenizerCli, ComplainsOfStandardInputThatCannotBeRead) {
  for (const char* command : {"encode", "decode"}) {
    const Ended of_a_folder = tokenizer(command, "< " + in_quotes(folder_.path()));
    EXPECT_EQ(of_a_folder.status, 1) << command;
    EXPECT_THAT(of_a_folder.output, HasSubstr("standard input could not be read: Is a directory"));
    const Ended closed = tokenizer(command, "<&-");
    EXPECT_EQ(closed.status, 1) << command;
    EXPECT_THAT(closed.output, HasSubstr("standard input could not be read: Bad file descriptor"));
  }
}

TEST_F(TokenizerCli, TakesNoFetchThatWasCutOffForATokenizer) {
  const fs::path fetched = folder_ / "tokenizers" / "gpt2";
  fs::create_directories(fetched);
  const auto encode = [&] {
    return run("tokenizer encode --tokenizer gpt2 /dev/null",
               "CAROPE_CACHE=" + in_quotes(folder_.path()));
  };
  const auto is_missing =
      AllOf(HasSubstr("there is no tokenizer gpt2"), HasSubstr("carope tokenizer fetch gpt2"));
  EXPECT_THAT(encode().output, is_missing);
  write_bytes(fetched / "vocab.bpe.part", "#version");
  EXPECT_THAT(encode().output, is_missing);
  const fs::path pair = CAROPE_SOURCE_DIR "/tests/data/small/pair";
  fs::copy(pair / "vocab.bpe", fetched);
  write_bytes(fetched / "encoder.json.part", "{");
  EXPECT_THAT(encode().output, is_missing);
  fs::copy(pair / "encoder.json", fetched);
  EXPECT_EQ(encode().status, 0) << encode().output;
}

TEST_F(TokenizerCli, TrainsTheSameTokenizerWithAnyNumberOfThreads) {
  const std::string text = read_file(CAROPE_SOURCE_DIR "/tests/data/small/training.txt");
  const std::string input =
      in_quotes(write("a.jsonl", lines_of_json({text, random_text(2'500'000, 3)}))) + " " +
      in_quotes(write("b.txt.gz", gzip(text)));
  for (const int threads : {1, 3}) {
    const Ended ended =
        run(fmt::format("tokenizer train --vocab 400 --threads {} --out {} {}", threads,
                        in_quotes(folder_ / fmt::format("new/{}.json", threads)), input));
    EXPECT_EQ(ended.status, 0) << ended.output;
    EXPECT_THAT(ended.output, HasSubstr(".json: 400 tokens, of which 143 are merges\n"));
  }
  EXPECT_TRUE(read_file(folder_ / "new/1.json") == read_file(folder_ / "new/3.json"));
  const std::string trained = (folder_ / "new/3.json").string();
  const Ended encoded = tokenizer("encode", in_quotes(write("text", text)), trained);
  EXPECT_EQ(tokenizer("decode", in_quotes(write("ids", encoded.output)), trained).output, text);
}

TEST_F(TokenizerCli, TrainRefusesImpossibleVocabulariesBeforeItReads) {
  for (const char* vocabulary : {"256", "65537", "-1", "many"}) {
    const Ended ended = run(fmt::format("tokenizer train --vocab {} no.txt", vocabulary));
    EXPECT_NE(ended.status, 0);
    EXPECT_THAT(ended.output, AllOf(HasSubstr("--vocab"), Not(HasSubstr("no.txt"))));
  }
  const auto out = folder_ / "tokenizer.json";
  const Ended small = run("tokenizer train --vocab 1000 --out " + in_quotes(out) + " " +
                          in_quotes(write("a.txt", "xyz")));
  EXPECT_EQ(small.status, 0);
  EXPECT_THAT(small.output, AllOf(HasSubstr("257 tokens"), HasSubstr("it must be longer")));
  EXPECT_THAT(run("tokenizer train --vocab 300 --out " + in_quotes(folder_.path()) + " " +
                  in_quotes(folder_ / "a.txt"))
                  .output,
              AllOf(HasSubstr("cannot write " + folder_.path().string()),
                    HasSubstr("it is a directory; name a file in it")));
  EXPECT_THAT(run("tokenizer train --vocab 300 --out mine.bpe no.txt").output,
              AllOf(HasSubstr("--out mine.bpe does not end in .json"), Not(HasSubstr("no.txt"))));
}

TEST(NestedCommands, SuggestTheNearest) {
  for (const auto& [misspelt, nearest] : {std::pair{"data prepre", "prepare"},
                                          {"data insepct x", "inspect"},
                                          {"tokenizer encod", "encode"},
                                          {"tokenzier encode", "tokenizer"}}) {
    const Ended ended = run(misspelt);
    EXPECT_NE(ended.status, 0);
    EXPECT_THAT(ended.output, HasSubstr(fmt::format("did you mean '{}'", nearest))) << misspelt;
  }
}

}  // namespace
}  // namespace carope::test
