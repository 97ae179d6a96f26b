// Token shards against the simplest way of making them: every document's tokens, one after another.
#include "data/shards/prepare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include "core/error.h"
#include "core/file.h"
#include "data/corpus/parquet.h"
#include "support/errors.h"
#include "support/prepared_folder.h"

namespace carope::test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class Prepare : public testing::Test {
 protected:
  PrepareConfig config_of(std::vector<fs::path> inputs, const std::string& out = "out") const {
    PrepareConfig config;
    config.inputs = std::move(inputs);
    config.tokenizer = kSmallTokenizer;
    config.folder = folder_ / out;
    config.name = "x";
    config.shard_tokens = 1000;
    config.threads = 2;
    return config;
  }

  fs::path write(const std::string& name, const std::string& content) const {
    return write_bytes(folder_ / name, content);
  }

  /// Prepares and checks that the shards, all full but the last, hold just these documents.
  Manifest expect_documents(const PrepareConfig& config, const Texts& documents) const {
    Manifest manifest = prepare(config);
    const auto shards = shards_of(config.folder);
    const std::vector<TokenId> expected = tokens_of(documents);
    EXPECT_GT(shards.size(), 2U);
    EXPECT_TRUE(joined(shards) == expected)
        << joined(shards).size() << " tokens, expected " << expected.size();
    for (std::size_t i = 0; i + 1 < shards.size(); ++i) {
      EXPECT_EQ(shards[i].size(), config.shard_tokens) << shards[i].name;
    }
    EXPECT_EQ(shards.front().name, "x_val_000000.bin");
    EXPECT_EQ(std::count_if(shards.begin(), shards.end(), std::mem_fn(&PreparedShard::validates)),
              1);
    return manifest;
  }

  TemporaryFolder folder_;
};

TEST_F(Prepare, GivesTheSameTokensForEveryFormat) {
  const Texts documents = random_documents(60);
  std::string text;
  for (const std::string& document : documents) {
    text += document + "\n<|endoftext|>\n";
  }
  const std::string lines = lines_of_json(documents);
  for (const auto& [name, content] : {std::pair{"a.txt", text},
                                      {"a.txt.gz", gzip(text)},
                                      {"a.txt.zst", zstd(text)},
                                      {"a.jsonl", lines},
                                      {"a.jsonl.gz", gzip(lines)},
                                      {"a.jsonl.zst", zstd(lines)}}) {
    SCOPED_TRACE(name);
    PrepareConfig config = config_of({write(name, content)}, std::string("out ") + name);
    config.format.delimiter = "<|endoftext|>";
    const Manifest manifest = expect_documents(config, documents);
    EXPECT_EQ(manifest.documents(Split::kTrain) + manifest.documents(Split::kValidation), 60);
  }
}

TEST_F(Prepare, ReadsParquet) {
  if (!reads_parquet()) {
    GTEST_SKIP() << "this build reads no Parquet";
  }
  Texts documents;
  for (int row = 1; row < 22; ++row) {  // as data/make_parquet.py writes them
    std::string text;
    for (int i = 0; i < row; ++i) {
      text += fmt::format("Row {} says it {} times, café 木.\n", row, i);
    }
    if (row != 7 && row != 8) {
      documents.push_back(text);
    }
  }
  const std::string data = CAROPE_SOURCE_DIR "/tests/data/";
  Texts twice = documents;
  twice.insert(twice.end(), documents.begin(), documents.end());
  expect_documents(config_of({data + "fineweb_snappy.parquet", data + "fineweb_zstd.parquet"}),
                   twice);
}

TEST_F(Prepare, TakesFilesInTheirOrderWhateverTheyAre) {
  const Texts documents = random_documents(40);
  const auto jsonl = write("b.jsonl", lines_of_json(documents));
  const auto packed = write("a.jsonl.gz", gzip(lines_of_json({documents[3], "", documents[4]})));
  const auto text = write("c.txt", documents[5] + "\n<|endoftext|>\n");
  Texts expected = documents;
  expected.insert(expected.end(), {documents[3], "", documents[4]});
  expected.push_back(documents[5] + "\n<|endoftext|>\n");  // without a delimiter it is text
  expected.insert(expected.end(), documents.begin(), documents.end());
  PrepareConfig config = config_of({jsonl, packed, text, jsonl});
  for (const std::int64_t shard_tokens : {997, 310}) {
    config.shard_tokens = shard_tokens;
    config.overwrite = true;
    expect_documents(config, expected);
  }
}

TEST_F(Prepare, LeavesBlankLinesOut) {
  const Texts documents = random_documents(20);
  std::string lines = "\n \r\n";
  for (const std::string& document : documents) {
    lines += lines_of_json({document}) + "\n\t\n";
  }
  expect_documents(config_of({write("a.jsonl", lines)}), documents);
}

TEST_F(Prepare, JoinsThePiecesOfALongText) {
  // Each document is handed on in several pieces; only its first begins with an end of text.
  const Texts documents{random_text(3'500'000, 1), random_text(10, 2), random_text(1'500'000, 3)};
  std::string text;
  for (const std::string& document : documents) {
    text += (text.empty() ? "" : "\n--\n") + document;
  }
  PrepareConfig config = config_of({write("a.txt", text)});
  config.format.delimiter = "--";
  config.shard_tokens = 300'007;
  const Manifest manifest = expect_documents(config, documents);
  EXPECT_EQ(manifest.documents(Split::kValidation), 1);
  EXPECT_EQ(manifest.documents(Split::kTrain), 2);
}

TEST_F(Prepare, GivesTheSameBytesForAnyNumberOfThreads) {
  const Texts documents = random_documents(3000, 2000);
  const auto jsonl = write("a.jsonl", lines_of_json(documents));
  const auto text = write("b.txt", random_text(2'000'000, 7));
  std::map<std::string, std::string> first;
  for (const int threads : {1, 2, 5}) {
    PrepareConfig config = config_of({jsonl, text}, fmt::format("out{}", threads));
    config.shard_tokens = 100'000;
    config.threads = threads;
    prepare(config);
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(config.folder)) {
      if (entry.is_regular_file()) {
        files.emplace(entry.path().filename().string(), read_file(entry.path()));
      }
    }
    EXPECT_GT(files.size(), 15U);
    first = first.empty() ? files : first;
    EXPECT_TRUE(files == first) << threads << " threads";
  }
}

TEST_F(Prepare, TakesTheValidationShardAsLargeAsAsked) {
  const Texts documents = random_documents(40);
  PrepareConfig config = config_of({write("a.jsonl", lines_of_json(documents))});
  config.validation_tokens = 77;
  const Manifest manifest = prepare(config);
  const auto shards = shards_of(config.folder);
  EXPECT_TRUE(joined(shards) == tokens_of(documents));
  EXPECT_EQ(manifest.tokens(Split::kValidation), 77);
  EXPECT_EQ(shards[0].size(), 77);
  EXPECT_TRUE(shards[0].validates());
  EXPECT_EQ(shards[1].name, "x_train_000001.bin");
  EXPECT_EQ(shards[1].size(), 1000);
}

TEST_F(Prepare, KeepsFilesForValidationApart) {
  const Texts held_out = random_documents(15);
  const Texts documents = random_documents(30);
  PrepareConfig config = config_of({write("a.jsonl", lines_of_json(documents))});
  config.validation = {write("v.jsonl", lines_of_json(held_out)), write("w.txt", "One more.")};
  const Manifest manifest = prepare(config);
  const auto shards = shards_of(config.folder);
  const auto train =
      std::find_if_not(shards.begin(), shards.end(), std::mem_fn(&PreparedShard::validates));
  ASSERT_GT(train - shards.begin(), 1) << "validation has several shards";
  Texts validation = held_out;
  validation.emplace_back("One more.");
  EXPECT_TRUE(joined({shards.begin(), train}) == tokens_of(validation));
  EXPECT_TRUE(joined({train, shards.end()}) == tokens_of(documents));
  EXPECT_TRUE(std::none_of(train, shards.end(), std::mem_fn(&PreparedShard::validates)));
  EXPECT_EQ(manifest.documents(Split::kValidation), 16);
  EXPECT_EQ(manifest.documents(Split::kTrain), 30);
}

TEST_F(Prepare, KeepsASmallCorpusWholeIfValidationHasFiles) {
  PrepareConfig config = config_of({write("a.txt", "The cat.")});
  config.validation = {write("v.txt", "The mat.")};
  prepare(config);
  const auto shards = shards_of(config.folder);
  ASSERT_EQ(shards.size(), 2U);
  EXPECT_EQ(shards[0].tokens, tokens_of({"The mat."}));
  EXPECT_EQ(shards[1].tokens, tokens_of({"The cat."}));
}

TEST_F(Prepare, StopsAfterSoManyTokens) {
  const Texts documents = random_documents(60);
  std::vector<TokenId> all = tokens_of(documents);
  ASSERT_GT(all.size(), 5000U);
  const auto input = write("a.jsonl", lines_of_json(documents));
  for (const std::int64_t most : {2500, 3000, 1001}) {
    PrepareConfig config = config_of({input}, fmt::format("out{}", most));
    config.most_tokens = most;
    EXPECT_TRUE(prepare(config).complete);
    const auto shards = shards_of(config.folder);
    EXPECT_TRUE(joined(shards) ==
                std::vector<TokenId>(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(most)));
    EXPECT_EQ(shards.size(), static_cast<std::size_t>((most + 999) / 1000));
    EXPECT_EQ(shards.back().size(), (most - 1) % 1000 + 1);
  }
}

TEST_F(Prepare, DividesASmallCorpusWhereADocumentEnds) {
  const Texts documents = random_documents(12, 50);
  const std::vector<TokenId> all = tokens_of(documents);
  ASSERT_LT(all.size(), 1000U);
  PrepareConfig config = config_of({write("a.jsonl", lines_of_json(documents))});
  const Manifest manifest = prepare(config);
  const auto shards = shards_of(config.folder);
  ASSERT_EQ(shards.size(), 2U);
  EXPECT_TRUE(shards[0].validates());
  EXPECT_EQ(shards[1].name, "x_train_000001.bin");
  EXPECT_EQ(joined(shards), all);
  // The first document that begins at a tenth or behind it begins the training tokens.
  auto cut = all.begin() + static_cast<std::ptrdiff_t>(all.size() / 10);
  cut = std::find(cut, all.end(), kSmallEndOfText);
  EXPECT_EQ(shards[0].size(), cut - all.begin());
  EXPECT_EQ(manifest.documents(Split::kValidation), shards[0].documents());
  EXPECT_EQ(manifest.documents(Split::kTrain), 12 - shards[0].documents());
  EXPECT_TRUE(manifest.complete);
}

TEST_F(Prepare, DividesADocumentRatherThanKeepMostForValidation) {
  const auto sizes = [&](const Texts& documents) {
    PrepareConfig config = config_of({write("a.jsonl", lines_of_json(documents))});
    config.overwrite = true;
    config.shard_tokens = 100'000;
    prepare(config);
    return sizes_of(shards_of(config.folder));
  };
  const std::string text = random_text(2000, 1);
  const auto size = static_cast<std::int64_t>(tokens_of({text}).size());
  EXPECT_THAT(sizes({text}), ElementsAre(size / 10, size - size / 10));
  const std::int64_t both = size + 2;  // with a document of one token
  ASSERT_EQ(tokens_of({text, "a"}).size(), static_cast<std::size_t>(both));
  EXPECT_THAT(sizes({text, "a"}), ElementsAre(both / 10, both - both / 10));
  EXPECT_THAT(sizes({"a"}), ElementsAre(1, 1));
  EXPECT_THAT(sizes({"", ""}), ElementsAre(1, 1));
  EXPECT_THAT(message_of<FileError>([&] { sizes({""}); }),
              AllOf(HasSubstr("1 token, too few"), HasSubstr("give more text")));
}

TEST_F(Prepare, MakesShardsOfOneToken) {
  const Texts documents{"The cat sat.", "", "On the mat."};
  PrepareConfig config = config_of({write("a.jsonl", lines_of_json(documents))});
  config.shard_tokens = 1;
  const Manifest manifest = prepare(config);
  const auto shards = shards_of(config.folder);
  EXPECT_EQ(joined(shards), tokens_of(documents));
  ASSERT_EQ(shards.size(), joined(shards).size());
  for (std::size_t i = 0; i < shards.size(); ++i) {
    EXPECT_EQ(manifest.shards.at(i).documents, shards[i].documents()) << shards[i].name;
  }
}

/// What sha256sum, another program, says of a file.
std::string sha256sum(const fs::path& path) {
  FILE* pipe = popen(("sha256sum < '" + path.string() + "'").c_str(), "r");
  std::string digest(64, '\0');
  EXPECT_EQ(fread(digest.data(), 1, digest.size(), pipe), digest.size());
  pclose(pipe);
  return digest;
}

TEST_F(Prepare, TellsInTheManifestWhatWasDone) {
  const Texts documents = random_documents(50);
  const auto first = write("a.jsonl", lines_of_json(documents));
  const auto second = write("b.txt.gz", gzip(documents[9]));
  PrepareConfig config = config_of({first, second});
  config.validation = {write("v.txt", documents[8])};
  prepare(config);
  const auto manifest = nlohmann::json::parse(read_file(config.folder / "manifest.json"));
  EXPECT_EQ(manifest["version"], 1);
  EXPECT_EQ(manifest["complete"], true);
  EXPECT_EQ(manifest["tokenizer"]["sha256"], Tokenizer::load(kSmallTokenizer).fingerprint());
  EXPECT_EQ(manifest["tokenizer"]["vocabulary"], 1024);
  EXPECT_EQ(manifest["tokenizer"]["end_of_text"], 1023);
  EXPECT_EQ(manifest["shard_tokens"], 1000);
  ASSERT_EQ(manifest["inputs"].size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) {
    const fs::path path = std::vector{config.validation[0], first, second}[i];
    const auto& input = manifest["inputs"][i];
    EXPECT_EQ(input["path"], path.string());
    EXPECT_EQ(input["bytes"], fs::file_size(path));
    EXPECT_EQ(input["sha256"], sha256sum(path));
    EXPECT_EQ(input["validation"], i == 0);
  }
  const auto shards = shards_of(config.folder);
  ASSERT_EQ(manifest["shards"].size(), shards.size());
  std::int64_t tokens = 0;
  std::int64_t begun = 0;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const auto& shard = manifest["shards"][i];
    EXPECT_EQ(shard["file"], shards[i].name);
    EXPECT_EQ(shard["split"], shards[i].validates() ? "val" : "train");
    EXPECT_EQ(shard["tokens"], shards[i].size());
    EXPECT_EQ(shard["documents"], shards[i].documents());
    tokens += shards[i].validates() ? 0 : shards[i].size();
    begun += shards[i].validates() ? 0 : shards[i].documents();
  }
  EXPECT_EQ(manifest["train"]["tokens"], tokens);
  EXPECT_EQ(manifest["train"]["documents"], begun);
  EXPECT_EQ(begun, 51);
  EXPECT_EQ(manifest["val"]["documents"], 1);
  EXPECT_EQ(manifest["val"]["tokens"], tokens_of({documents[8]}).size());
}

TEST_F(Prepare, KeepsACopyOfTheTokenizerAndOfNoOther) {
  const std::string small = CAROPE_SOURCE_DIR "/tests/data/small";
  PrepareConfig config = config_of({write("a.txt", "The cat sat on the mat.")});
  const fs::path mine = folder_ / "my-own.json";  // as tokenizer train was asked to call it
  fs::copy_file(small + "/tokenizer.json", mine);
  fs::copy(small + "/pair", folder_ / "pair");
  for (const std::string& path :
       {small + "/tokenizer.json", small + "/small.tiktoken", small + "/pair",
        small + "/small.tiktoken", mine.string(), (folder_ / "pair/encoder.json").string(),
        (folder_ / "pair/vocab.bpe").string(), mine.string()}) {
    config.tokenizer = path;
    config.overwrite = true;
    prepare(config);
    EXPECT_EQ(Tokenizer::load(config.folder / "tokenizer").fingerprint(),
              Tokenizer::load(path).fingerprint());
    EXPECT_EQ(std::distance(fs::directory_iterator(config.folder / "tokenizer"), {}),
              path.find("pair") != std::string::npos ? 2 : 1)
        << path;
  }
}

TEST_F(Prepare, NamesShardsAfterTheirFolder) {
  const auto input = write("a.txt", "The cat sat on the mat.");
  PrepareConfig config = config_of({input});
  config.name = "";
  fs::create_directories(folder_ / "fine_train_web" / "deeper");
  for (const char* path :
       {"fine_train_web", "fine_train_web/", "fine_train_web/.", "fine_train_web/deeper/.."}) {
    config.folder = folder_ / path;
    config.overwrite = true;
    prepare(config);
    EXPECT_EQ(shards_of(folder_ / "fine_train_web").front().name, "fine_train_web_val_000000.bin")
        << path;
  }
}

TEST_F(Prepare, RefusesWhatMakesNoSense) {
  const auto input = write("a.txt", "The cat sat on the mat.");
  const auto refusal = [&](const std::function<void(PrepareConfig&)>& change) {
    PrepareConfig config = config_of({input});
    change(config);
    const std::string message = message_of<ConfigError>([&] { prepare(config); });
    EXPECT_FALSE(fs::exists(folder_ / "out")) << message;
    return message;
  };
  EXPECT_THAT(refusal([](auto& config) { config.inputs.clear(); }), HasSubstr("name at least one"));
  EXPECT_THAT(refusal([](auto& config) { config.folder = ""; }), HasSubstr("no folder"));
  EXPECT_THAT(refusal([](auto& config) { config.shard_tokens = 0; }), HasSubstr("from 1 to "));
  EXPECT_THAT(refusal([](auto& config) { config.shard_tokens = std::int64_t{1} << 31; }),
              HasSubstr("from 1 to 2147483647"));
  EXPECT_THAT(refusal([](auto& config) { config.validation_tokens = std::int64_t{1} << 31; }),
              HasSubstr("from 1 to 2147483647"));
  EXPECT_THAT(refusal([](auto& config) { config.name = "../x"; }),
              AllOf(HasSubstr("'../x' has a '/'"), HasSubstr("name only")));
  EXPECT_THAT(refusal([](auto& config) { config.threads = 5000; }), HasSubstr("threads = 5000"));
  fs::create_symlink(input, folder_ / "link.txt");
  EXPECT_THAT(refusal([&](auto& config) { config.validation = {folder_ / "link.txt"}; }),
              AllOf(HasSubstr("a.txt is named for validation and for training"),
                    HasSubstr("name it once")));
}

}  // namespace
}  // namespace carope::test
