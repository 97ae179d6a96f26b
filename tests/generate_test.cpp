// Text from a model: however a prompt is cut the same comes out, and the program continues what it
// was given.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <numeric>
#include <set>
#include <thread>

#include "core/file.h"
#include "generate/generator.h"
#include "support/compare.h"
#include "support/errors.h"
#include "support/folder.h"
#include "support/program.h"
#include "support/tokens.h"

namespace carope::test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

const std::string kSmall = CAROPE_SOURCE_DIR "/tests/data/small";
constexpr std::int64_t kVocabulary = 50;
constexpr std::int64_t kPositions = 96;

std::vector<TokenId> all_tokens() {
  std::vector<TokenId> ids(kVocabulary);
  std::iota(ids.begin(), ids.end(), TokenId{0});
  return ids;
}

std::vector<TokenId> random_prompt(std::int64_t length) {
  const RandomBatch random(1, length, kVocabulary);
  return {random.tokens.begin(), random.tokens.end()};
}

GptConfig small_config(const std::string& encoding, Options options = {}) {
  return {.layers = 2,
          .heads = 2,
          .width = 32,
          .vocabulary = kVocabulary,
          .length = kPositions,
          .encoding = encoding,
          .encoding_options = std::move(options)};
}

/// A reader that has read a prompt in pieces.
SequenceReader read_in_pieces(Context& ctx, const Gpt& model, std::span<const TokenId> prompt,
                              std::size_t chunk) {
  SequenceReader reader(ctx, model, kPositions);
  for (std::size_t at = 0; at < prompt.size(); at += chunk) {
    reader.read(prompt.subspan(at, std::min(chunk, prompt.size() - at)));
  }
  return reader;
}

/// The encoding's state, all layers one after another.
std::vector<std::uint32_t> phases_of(const DecodeState& state) {
  std::vector<std::uint32_t> phases;
  for (const AttentionState& layer : state.layers) {
    if (layer.phase) {
      const auto* values = layer.phase.data<std::uint32_t>();
      phases.insert(phases.end(), values, values + layer.phase.size());
    }
  }
  return phases;
}

class EveryEncoding : public testing::TestWithParam<std::string> {
 protected:
  EveryEncoding() {
    model_.initialise(5);
    perturb(model_, 0.05);
  }

  /// The logits of every token of a sequence that is given at once.
  std::vector<float> whole_logits(std::span<const TokenId> tokens) {
    const auto length = static_cast<std::int64_t>(tokens.size());
    std::vector<std::int32_t> ids(tokens.begin(), tokens.end());
    Activations a = model_.plan({.batch = 1, .length = length, .purpose = Purpose::kEvaluation});
    model_.forward(ctx_, {.length = length}, Tensor::of(ids, {1, length}), a);
    std::vector<float> logits(ids.size() * kVocabulary);
    model_.logits(ctx_, a, Tensor::of(logits, {length, kVocabulary}));
    return logits;
  }

  std::vector<TokenId> continue_greedily(std::span<const TokenId> prompt, std::int64_t chunk,
                                         std::vector<std::int64_t>& read) {
    return generate(ctx_, model_, prompt,
                    {.sampler = {.temperature = 0.0},
                     .tokens = 20,
                     .chunk = chunk,
                     .allowed = all_tokens()},
                    {.read = [&](std::int64_t count) { read.push_back(count); },
                     .token = [](TokenId) {}},
                    false)
        .tokens;
  }

  Gpt model_{small_config(GetParam())};
  Context ctx_ = Context::cpu(2);
  const std::vector<TokenId> prompt_ = random_prompt(40);
  const Tolerance tolerance_ = tolerance(DType::kF32);
};

TEST_P(EveryEncoding, ChunksDoNotMatter) {
  const std::vector<float> whole = whole_logits(prompt_);
  const std::span<const float> expected = std::span(whole).last(kVocabulary);
  SequenceReader at_once = read_in_pieces(ctx_, model_, prompt_, 40);
  const std::span<const float> last = at_once.logits();
  const std::vector<float> logits(last.begin(), last.end());
  EXPECT_LT((relative_error<float, float>(logits, expected)), tolerance_.forward);
  std::vector<std::int64_t> read;
  const std::vector<TokenId> continuation = continue_greedily(prompt_, 1000, read);
  EXPECT_THAT(read, ElementsAre(40));
  EXPECT_EQ(continuation.size(), 20U);
  for (const std::size_t chunk : {1, 3, 7, 39, 40}) {
    SequenceReader reader = read_in_pieces(ctx_, model_, prompt_, chunk);
    EXPECT_TRUE(same_bits(reader.logits(), logits)) << chunk;
    EXPECT_EQ(phases_of(reader.state()), phases_of(at_once.state())) << chunk;
    read.clear();
    EXPECT_EQ(continue_greedily(prompt_, static_cast<std::int64_t>(chunk), read), continuation);
    EXPECT_EQ(read.size(), (40 + chunk - 1) / chunk);
  }
}

TEST_P(EveryEncoding, DecodesAsAWholePassSees) {
  SequenceReader reader = read_in_pieces(ctx_, model_, prompt_, 7);
  Sampler sampler({.temperature = 0.0}, all_tokens());
  std::vector<TokenId> sequence = prompt_;
  std::vector<float> decoded;
  for (int i = 0; i < 20; ++i) {
    const std::span<const float> logits = reader.logits();
    decoded.insert(decoded.end(), logits.begin(), logits.end());
    sequence.push_back(sampler.pick(logits, reader.seen()));
    reader.read({&sequence.back(), 1});
  }
  EXPECT_EQ(reader.seen(), 60);
  const std::vector<float> whole = whole_logits(sequence);
  EXPECT_LT((relative_error<float, float>(
                decoded, std::span(whole).subspan(39 * kVocabulary, 20 * kVocabulary))),
            tolerance_.forward);
  std::vector<std::int64_t> read;
  EXPECT_EQ(continue_greedily(prompt_, 512, read),
            std::vector(sequence.begin() + 40, sequence.end()));
}

INSTANTIATE_TEST_SUITE_P(Encodings, EveryEncoding, testing::ValuesIn(encoding_names()),
                         [](const auto& info) { return info.param; });

TEST(CaropeState, IsTheSameBitsHoweverThePromptIsCut) {
  Context ctx = Context::cpu(2);
  const std::vector<TokenId> prompt = random_prompt(90);
  for (const char* source : {"embedding", "hidden"}) {
    Gpt model(small_config("carope", {{"source", std::string(source)}}));
    model.initialise(5);
    perturb(model, 0.5);
    const auto phases = [&](std::size_t chunk) {
      return phases_of(read_in_pieces(ctx, model, prompt, chunk).state());
    };
    const auto expected = phases(90);
    EXPECT_GT(std::set(expected.begin(), expected.end()).size(), expected.size() / 2);
    for (const std::size_t chunk : {1, 3, 7, 64, 89}) {
      EXPECT_EQ(phases(chunk), expected) << source << chunk;
    }
  }
}

TEST(CaropeState, HasOnePhaseAHeadAndPairAtAnyCapacity) {
  const Gpt model(small_config("carope"));
  Context ctx = Context::cpu(1);
  for (const std::int64_t capacity : {1, 5000}) {
    const SequenceReader reader(ctx, model, capacity);
    for (const AttentionState& layer : reader.state().layers) {
      EXPECT_EQ(layer.phase.size(), 2 * 8);  // 2 heads of 8 pairs
      EXPECT_EQ(layer.cache.keys.size(), capacity * 32);
    }
  }
}

class Generation : public testing::Test {
 protected:
  Generation() {
    model_.initialise(5);
    perturb(model_, 0.05);
  }

  Generated run(std::span<const TokenId> prompt, const GenerateConfig& config) {
    return generate(
        ctx_, model_, prompt, config,
        {.read = [](std::int64_t) {}, .token = [&](TokenId) { stop_ = ++told_ == stop_at_; }},
        stop_);
  }

  Gpt model_{small_config("learnable")};
  Context ctx_ = Context::cpu(2);
  std::vector<TokenId> prompt_ = random_prompt(5);
  GenerateConfig config_{.tokens = 12, .allowed = all_tokens()};
  std::atomic<bool> stop_ = false;
  int told_ = 0;
  int stop_at_ = 0;
};

TEST_F(Generation, DrawsATokenByItsPlaceInTheSequence) {
  const Generated whole = run(prompt_, config_);
  ASSERT_EQ(whole.tokens.size(), 12U);
  EXPECT_EQ(whole.steps, 11);
  EXPECT_EQ(told_, 12);
  EXPECT_EQ(run(prompt_, config_).tokens, whole.tokens);
  prompt_.insert(prompt_.end(), whole.tokens.begin(), whole.tokens.begin() + 4);
  config_.tokens = 8;
  EXPECT_EQ(run(prompt_, config_).tokens,
            std::vector(whole.tokens.begin() + 4, whole.tokens.end()));
  config_.sampler.seed = 2;
  EXPECT_NE(run(prompt_, config_).tokens,
            std::vector(whole.tokens.begin() + 4, whole.tokens.end()));
}

TEST_F(Generation, EndsWhereItShould) {
  const std::vector<TokenId> whole = run(prompt_, config_).tokens;
  config_.end = whole[3];
  const auto end = std::find(whole.begin(), whole.end(), whole[3]);
  const Generated ended = run(prompt_, config_);
  EXPECT_EQ(ended.tokens, std::vector(whole.begin(), end));
  EXPECT_TRUE(ended.ended);

  config_.end = std::nullopt;
  told_ = 0;
  stop_at_ = 5;
  const Generated stopped = run(prompt_, config_);
  EXPECT_EQ(stopped.tokens, std::vector(whole.begin(), whole.begin() + 5));
  EXPECT_FALSE(stopped.ended);
  EXPECT_TRUE(stop_);
  EXPECT_EQ(run(prompt_, config_).tokens.size(), 0U);  // it was stopped before it began
}

TEST_F(Generation, PicksOnlyWhatIsAllowed) {
  config_.allowed = {7, 9};
  const Generated result = run(prompt_, config_);
  EXPECT_THAT(result.tokens, testing::Each(testing::AnyOf(7, 9)));
  EXPECT_THAT(result.tokens, testing::Contains(7));
  EXPECT_THAT(result.tokens, testing::Contains(9));
}

TEST_F(Generation, RefusesBeforeItComputes) {
  const auto message = [&](const std::vector<TokenId>& prompt) {
    return message_of<ConfigError>([&] { run(prompt, config_); });
  };
  config_.tokens = 91;
  EXPECT_EQ(message(prompt_), "(nothing thrown)");
  config_.tokens = 92;
  EXPECT_THAT(message(prompt_),
              AllOf(HasSubstr("the prompt has 5 tokens and 92 more"),
                    HasSubstr("'learnable' has 96 positions"), HasSubstr("at most 91 new tokens")));
  EXPECT_THAT(message(random_prompt(96)), HasSubstr("shorten the prompt to 95 tokens or fewer"));
  EXPECT_THAT(message({}), HasSubstr("the prompt is empty"));
  config_.tokens = 0;
  EXPECT_THAT(message(prompt_), HasSubstr("0 new tokens"));
  config_ = {.chunk = 0};
  EXPECT_THAT(message(prompt_), HasSubstr("a chunk of 1 or more"));
}

/// A model of a second's training on a page of English, with padding behind its vocabulary of 1024.
class GenerateCommand : public testing::Test {
 protected:
  GenerateCommand() {
    const Ended prepared = run("data prepare --tokenizer '" + kSmall + "/tokenizer.json' --out '" +
                               (folder_ / "data").string() + "' '" + kSmall + "/training.txt'");
    EXPECT_EQ(prepared.status, 0) << prepared.output;
  }

  void train(const std::string& name, const std::string& more) const {
    const Ended trained =
        run("train --threads 2 --out '" + (folder_ / name).string() + "' --data.path '" +
            (folder_ / "data").string() +
            "' --model.vocabulary 1056 --model.layers 2 --model.heads 2 --model.width 16 "
            "--model.length 32 --train.batch_tokens 256 --train.micro_batch 4 "
            "--train.learning_rate 1e-2 --train.warmup_steps 2 " +
            more);
    ASSERT_EQ(trained.status, 0) << trained.output;
  }

  std::string command(const std::string& arguments) const {
    return "generate --threads 2 '" + (folder_ / "a").string() + "' " + arguments;
  }

  /// Standard output alone: the other stream goes into a file.
  Ended text(const std::string& arguments) const {
    return run(command(arguments) + " 2>'" + (folder_ / "stderr").string() + "' || exit; true");
  }

  TemporaryFolder folder_;
};

TEST_F(GenerateCommand, ContinuesAPrompt) {
  train("a", "--train.tokens 7680");
  const std::string prompt = "--prompt 'The “model”' --tokens 40 --ignore-end ";
  const Ended first = text(prompt);
  ASSERT_EQ(first.status, 0) << first.output;
  EXPECT_THAT(first.output, StartsWith("The “model”"));
  EXPECT_GT(first.output.size(), 60U);
  EXPECT_EQ(first.output.back(), '\n');
  EXPECT_THAT(read_file(folder_ / "stderr"),
              testing::MatchesRegex("prompt: [0-9]+ tokens, .* tokens/s\n"
                                    "continuation: 40 tokens, .* tokens/s\n"));
  EXPECT_EQ(text(prompt).output, first.output);
  EXPECT_NE(text(prompt + "--seed 2").output, first.output);

  const std::string greedy = text(prompt + "--temperature 0 --chunk 1").output;
  EXPECT_NE(greedy, first.output);
  EXPECT_EQ(text(prompt + "--temperature 0 --chunk 512").output, greedy);
  EXPECT_EQ(text(prompt + "--top-k 1 --chunk 3 --seed 9").output, greedy);
  EXPECT_EQ(text(prompt + "--top-p 1e-9 --tokenizer '" + kSmall + "/small.tiktoken'").output,
            greedy);

  const fs::path file = write_bytes(folder_ / "prompt.txt", "The “model”");
  const std::string rest = " --tokens 40 --ignore-end --temperature 0";
  EXPECT_EQ(text("--prompt-file '" + file.string() + "'" + rest).output, greedy);
  EXPECT_EQ(text("--prompt-file - < '" + file.string() + "'" + rest).output, greedy);
  EXPECT_EQ(text("--prompt - < '" + file.string() + "'" + rest).output, greedy);
  const Ended empty = text("--tokens 5 --ignore-end");
  EXPECT_EQ(empty.status, 0);
  EXPECT_THAT(read_file(folder_ / "stderr"), StartsWith("prompt: 1 tokens, "));
}

TEST_F(GenerateCommand, Returns130WhenInterrupted) {
  train("a", "--train.tokens 256");
  const fs::path file = folder_ / "text";
  const pid_t child =
      start(command("--prompt 'Begin' --tokens 50k --ignore-end > '" + file.string() + "'"));
  int status = 0;
  while (!fs::exists(file) || fs::file_size(file) < 50) {  // it comes as it is made
    ASSERT_EQ(waitpid(child, &status, WNOHANG), 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  kill(child, SIGINT);
  waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 130);
  EXPECT_THAT(read_file(file), StartsWith("Begin"));
}

TEST_F(GenerateCommand, RefusesWhatItCannotDo) {
  const auto refusal = [&](const std::string& arguments) {
    const Ended ended = run(command(arguments));
    EXPECT_NE(ended.status, 0) << arguments;
    return ended.output;
  };
  EXPECT_THAT(refusal(""), AllOf(HasSubstr((folder_ / "a").string()),
                                 HasSubstr("no complete checkpoint; name a run's folder")));
  train("a", "--train.tokens 256 --position.encoding learnable");
  EXPECT_THAT(refusal("--prompt x --prompt-file y"), HasSubstr("--prompt excludes --prompt-file"));
  EXPECT_THAT(refusal("--prompt-file nowhere.txt"), HasSubstr("nowhere.txt"));
  EXPECT_THAT(refusal("--prompt - < '" + folder_.path().string() + "'"),
              HasSubstr("standard input could not be read: Is a directory"));
  EXPECT_THAT(refusal("--prompt - <&-"),
              HasSubstr("standard input could not be read: Bad file descriptor"));
  EXPECT_THAT(refusal("--prompt x --tokens 31"),
              AllOf(HasSubstr("the prompt has 2 tokens and 31 more"), HasSubstr("'learnable'"),
                    HasSubstr("at most 30 new tokens"), Not(HasSubstr("continuation"))));
  EXPECT_THAT(refusal("--tokens 9 --temperature -1"),
              HasSubstr("temperature = -1 is not possible"));
  EXPECT_THAT(refusal("--tokens 9 --top-p 0"), HasSubstr("top-p = 0 is not possible"));
  EXPECT_THAT(refusal("--tokens 9 --top-p 2"), HasSubstr("top-p = 2 is not possible"));
  EXPECT_THAT(refusal("--tokens 9 --seed -1"), HasSubstr("-1 is not possible; give 0 or more"));
  EXPECT_THAT(refusal("--tokens 0"), HasSubstr("give 1 or more"));

  const std::string other = (folder_ / "other.json").string();
  ASSERT_EQ(
      run("tokenizer train --vocab 300 --out '" + other + "' '" + kSmall + "/training.txt'").status,
      0);
  EXPECT_THAT(
      refusal("--tokenizer '" + other + "'"),
      AllOf(HasSubstr("other.json is not the tokenizer that"), HasSubstr("leave out --tokenizer")));
  fs::remove_all(folder_ / "data" / "tokenizer");
  EXPECT_THAT(refusal(""), AllOf(HasSubstr((folder_ / "data" / "tokenizer").string()),
                                 HasSubstr("name the tokenizer"), HasSubstr("--tokenizer")));
  EXPECT_EQ(run(command("--tokens 3 --tokenizer '" + kSmall + "'")).status, 0);
}

}  // namespace
}  // namespace carope::test
