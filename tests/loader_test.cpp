// The stream of batches, against a reading of the same tokens that is as plain as can be.
#include "data/loader/loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <set>

#include "core/random.h"
#include "data/loader/permutation.h"
#include "ops/sequence.h"
#include "support/errors.h"
#include "support/shard_files.h"

namespace carope::test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

constexpr TokenId kEndOfText = 50256;

/// Shards of these sizes in a folder of their own, and their tokens in one vector.
struct Files {
  explicit Files(const std::vector<std::size_t>& sizes) {
    for (const std::size_t size : sizes) {
      std::vector<std::uint16_t> shard;
      for (std::size_t i = 0; i < size; ++i) {
        const auto number = static_cast<std::uint64_t>(tokens.size());
        const std::uint32_t token = Philox(5, 0).below(50000, number);
        shard.push_back(static_cast<std::uint16_t>(token % 13 == 0 ? kEndOfText : token));
        tokens.push_back(shard.back());
      }
      paths.push_back(write_bytes(folder / std::to_string(paths.size()), shard_bytes(shard)));
    }
  }

  TemporaryFolder folder;
  std::vector<fs::path> paths;
  std::vector<std::int32_t> tokens;
};

/// A batch's numbers, kept.
struct Rows {
  explicit Rows(const TokenBatch& batch)
      : step(batch.step),
        tokens(copy(batch.tokens)),
        targets(copy(batch.targets)),
        starts(copy(batch.document_start)) {}

  static std::vector<std::int32_t> copy(const Tensor& tensor) {
    if (!tensor) {
      return {};
    }
    const auto* data = tensor.data<std::int32_t>();
    return {data, data + tensor.size()};
  }

  void append(const Rows& other) {
    tokens.insert(tokens.end(), other.tokens.begin(), other.tokens.end());
    targets.insert(targets.end(), other.targets.begin(), other.targets.end());
    starts.insert(starts.end(), other.starts.begin(), other.starts.end());
  }
  friend bool operator==(const Rows&, const Rows&) = default;

  std::int64_t step;
  std::vector<std::int32_t> tokens, targets, starts;
};

std::vector<Rows> take(Loader& loader, int steps) {
  std::vector<Rows> rows;
  for (int i = 0; i < steps; ++i) {
    rows.emplace_back(loader.next());
  }
  return rows;
}

std::vector<Rows> take(const Files& files, const LoaderConfig& config, int steps) {
  Loader loader(files.paths, config);
  return take(loader, steps);
}

// 175 tokens: 10 windows of 17, of which several lie in two shards or more.
const std::vector<std::size_t> kSizes{1, 7, 100, 3, 64};
constexpr std::int64_t kLength = 17;
constexpr std::int64_t kWindows = 10;

LoaderConfig config_of(Order order) {
  return {.length = kLength, .batch = 4, .order = order, .seed = 42, .vocabulary = 50257};
}

TEST(Loader, EqualsAPlainReadingInBothOrders) {
  const Files files(kSizes);
  for (const Order order : {Order::kSequential, Order::kShuffled}) {
    const LoaderConfig config = config_of(order);
    Loader loader(files.paths, config);
    EXPECT_EQ(loader.tokens(), 175);
    EXPECT_EQ(loader.windows(), kWindows);
    for (std::int64_t step = 0; step < 20; ++step) {  // 8 epochs, whose ends fall within steps
      EXPECT_EQ(loader.step(), step);
      const Rows rows(loader.next());
      EXPECT_EQ(rows.step, step);
      EXPECT_TRUE(rows.starts.empty());
      std::vector<std::int32_t> tokens;
      std::vector<std::int32_t> targets;
      for (std::int64_t n = 4 * step; n < 4 * step + 4; ++n) {
        std::int64_t window = n % kWindows;
        if (order == Order::kShuffled) {
          window = Permutation(kWindows, 42, static_cast<std::uint64_t>(n / kWindows))(window);
        }
        const auto first = files.tokens.begin() + window * kLength;
        tokens.insert(tokens.end(), first, first + kLength);
        targets.insert(targets.end(), first + 1, first + kLength + 1);
      }
      ASSERT_EQ(rows.tokens, tokens) << step;
      ASSERT_EQ(rows.targets, targets) << step;
    }
  }
}

TEST(Loader, VisitsEveryWindowOnceAnEpoch) {
  const Files files({500, 501});
  for (const Order order : {Order::kSequential, Order::kShuffled}) {
    LoaderConfig config = config_of(order);
    config.length = 10;
    config.batch = 5;
    std::vector<std::vector<std::int32_t>> epochs;
    Loader loader(files.paths, config);
    ASSERT_EQ(loader.windows(), 100);
    for (int epoch = 0; epoch < 3; ++epoch) {
      std::multiset<std::vector<std::int32_t>> seen;
      epochs.emplace_back();
      for (const Rows& rows : take(loader, 20)) {
        for (auto row = rows.tokens.begin(); row != rows.tokens.end(); row += 10) {
          seen.emplace(row, row + 10);
        }
        epochs.back().insert(epochs.back().end(), rows.tokens.begin(), rows.tokens.end());
      }
      for (auto row = files.tokens.begin(); row != files.tokens.end() - 1; row += 10) {
        EXPECT_EQ(seen.count({row, row + 10}), 1U);
      }
    }
    EXPECT_EQ(epochs[0] == epochs[1], order == Order::kSequential);
    EXPECT_EQ(epochs[1] == epochs[2], order == Order::kSequential);
  }
}

TEST(Loader, GivesRanksThePartsOfOneBatch) {
  const Files files(kSizes);
  LoaderConfig config = config_of(Order::kShuffled);
  config.batch = 12;
  config.end_of_text = kEndOfText;
  config.documents = true;
  const std::vector<Rows> whole = take(files, config, 6);
  for (const int ranks : {2, 4}) {
    config.ranks = ranks;
    config.rank = 0;
    std::vector<Rows> joined = take(files, config, 6);
    EXPECT_EQ(joined[0].tokens.size(), static_cast<std::size_t>(12 / ranks * kLength));
    for (config.rank = 1; config.rank < ranks; ++config.rank) {
      const std::vector<Rows> part = take(files, config, 6);
      for (std::size_t step = 0; step < joined.size(); ++step) {
        joined[step].append(part[step]);
      }
    }
    EXPECT_TRUE(joined == whole) << ranks;
  }
}

TEST(Loader, StartsAtAnyStep) {
  const Files files(kSizes);
  for (const Order order : {Order::kSequential, Order::kShuffled}) {
    LoaderConfig config = config_of(order);
    const std::vector<Rows> all = take(files, config, 30);
    for (const int first : {1, 7, 24}) {
      config.first_step = first;
      EXPECT_TRUE(take(files, config, 6) ==
                  std::vector<Rows>(all.begin() + first, all.begin() + first + 6))
          << first;
    }
    config.first_step = 2147483647;  // 8 thousand million rows in: an answer at once
    const Rows far = take(files, config, 1)[0];
    config.first_step = 0;
    Arena arena;
    TokenBatch batch;
    const Loader loader(files.paths, config);
    arena = Arena::plan({}, [&](Arena& plan) { batch = loader.place(plan); });
    loader.fill(2147483647, batch);
    EXPECT_TRUE(Rows(batch) == far);
    loader.fill(29, batch);
    EXPECT_TRUE(Rows(batch) == all[29]) << "steps in any order";
    EXPECT_EQ(loader.step(), 0);
    EXPECT_THROW(loader.fill(-1, batch), ConfigError);
  }
}

TEST(Loader, GivesTheSameHoweverFarItMakesAhead) {
  const Files files(kSizes);
  LoaderConfig config = config_of(Order::kShuffled);
  config.prefetch = 1;
  const std::vector<Rows> one = take(files, config, 40);
  for (const int prefetch : {2, 8}) {
    config.prefetch = prefetch;
    EXPECT_TRUE(take(files, config, 40) == one) << prefetch;
  }
}

TEST(Loader, KeepsABatchUntilTheNext) {
  const Files files(kSizes);
  const LoaderConfig config = config_of(Order::kSequential);
  Loader loader(files.paths, config);
  for (int step = 0; step < 5; ++step) {
    const TokenBatch& batch = loader.next();
    const Rows before(batch);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // the thread makes what it may
    EXPECT_TRUE(Rows(batch) == before);
  }
}

TEST(Loader, SeedsAndOrdersDiffer) {
  const Files files({5000});
  LoaderConfig config = config_of(Order::kShuffled);
  const std::vector<Rows> one = take(files, config, 3);
  config.seed = 43;
  EXPECT_FALSE(take(files, config, 3) == one);
  config.order = Order::kSequential;
  const std::vector<Rows> sequential = take(files, config, 3);
  config.seed = 42;
  EXPECT_TRUE(take(files, config, 3) == sequential) << "the seed is of the shuffled order only";
}

TEST(Loader, SaysWhereDocumentsBegin) {
  const Files files(kSizes);
  LoaderConfig config = config_of(Order::kShuffled);
  config.end_of_text = kEndOfText;
  config.documents = true;
  Loader loader(files.paths, config);
  int begun = 0;
  for (int step = 0; step < 10; ++step) {
    const TokenBatch& batch = loader.next();
    const Rows rows(batch);
    ASSERT_EQ(rows.starts.size(), rows.tokens.size());
    for (std::size_t row = 0; row < 4; ++row) {
      for (std::size_t t = 0; t < kLength; ++t) {
        std::size_t start = t;
        while (start > 0 && rows.tokens[row * kLength + start] != kEndOfText) {
          --start;
        }
        EXPECT_EQ(rows.starts[row * kLength + t], static_cast<std::int32_t>(start));
        begun += start == t && t > 0 ? 1 : 0;
      }
    }
    EXPECT_NO_THROW(
        check_documents({.batch = 4, .length = kLength, .document_start = batch.document_start}));
  }
  EXPECT_GT(begun, 20) << "too few documents to tell";
}

TEST(Loader, LeavesATokenForTheLastTarget) {
  const Files exact({170});
  EXPECT_EQ(Loader(exact.paths, config_of(Order::kSequential)).windows(), 9);
  const Files one_more({171});
  EXPECT_EQ(Loader(one_more.paths, config_of(Order::kSequential)).windows(), 10);
}

TEST(Loader, NeedsOneWindow) {
  const Files files({10, 7});
  LoaderConfig config = config_of(Order::kShuffled);
  EXPECT_THAT(message_of<FileError>([&] { Loader(files.paths, config); }),
              AllOf(HasSubstr(files.paths[0].string()), HasSubstr("2 shard(s)"),
                    HasSubstr("17 tokens"), HasSubstr("need 18"), HasSubstr("smaller length")));
  config.length = 16;
  const std::vector<Rows> rows = take(files, config, 2);
  EXPECT_EQ(rows[0].tokens, rows[1].tokens) << "the one window, again and again";
  EXPECT_EQ(rows[0].targets.back(), files.tokens.back());
  EXPECT_THAT(message_of<FileError>([&] { Loader({}, config); }), HasSubstr("name one"));
}

TEST(Loader, PassesOnWhatIsWrongWithAToken) {
  for (const std::int32_t bad : {107, 112}) {  // in the third shard, and at the fourth's beginning
    Files files(kSizes);
    LoaderConfig config = config_of(Order::kSequential);
    config.batch = 1;
    const std::size_t shard = bad < 108 ? 2 : 4;
    const std::int32_t origin = bad < 108 ? 8 : 111;
    std::vector<std::uint16_t> tokens(
        files.tokens.begin() + origin,
        files.tokens.begin() + origin + static_cast<std::int64_t>(kSizes[shard]));
    tokens[static_cast<std::size_t>(bad - origin)] = 50257;
    write_bytes(files.paths[shard], shard_bytes(tokens));
    Loader loader(files.paths, config);
    for (int step = 0; step < 6; ++step) {
      EXPECT_EQ(Rows(loader.next()).tokens.size(), 17U) << "windows before the token are served";
    }
    for (int attempt = 0; attempt < 2; ++attempt) {
      EXPECT_THAT(message_of<FileError>([&] { loader.next(); }),
                  AllOf(HasSubstr(files.paths[shard].string()),
                        HasSubstr(fmt::format("token {} (at byte {})", bad - origin,
                                              1024 + 2 * (bad - origin))),
                        HasSubstr("is 50257"), HasSubstr("the vocabulary has 50257 (0 to 50256)"),
                        HasSubstr("another tokenizer")));
      EXPECT_EQ(loader.step(), 6);
    }
    config.vocabulary = 50258;
    EXPECT_EQ(take(files, config, 10).size(), 10U);
  }
}

TEST(Loader, ChecksTheTokenThatIsOnlyATarget) {
  Files files({18});
  std::vector<std::uint16_t> tokens(files.tokens.begin(), files.tokens.end());
  tokens.back() = 60000;
  write_bytes(files.paths[0], shard_bytes(tokens));
  Loader loader(files.paths, config_of(Order::kSequential));
  EXPECT_THAT(message_of<FileError>([&] { loader.next(); }),
              AllOf(HasSubstr("token 17 (at byte 1058) is 60000")));
}

TEST(Loader, RefusesABadShardBeforeItStarts) {
  const Files files({100, 100});
  fs::resize_file(files.paths[1], 1200);
  EXPECT_THAT(
      message_of<FileError>([&] { Loader(files.paths, config_of(Order::kSequential)); }),
      AllOf(HasSubstr(files.paths[1].string()), HasSubstr("truncated"), HasSubstr("again")));
}

TEST(Loader, RefusesImpossibleSettings) {
  const Files files({1000});
  const auto refusal = [&](auto change) {
    LoaderConfig config = config_of(Order::kShuffled);
    change(config);
    return message_of<ConfigError>([&] { Loader(files.paths, config); });
  };
  EXPECT_THAT(refusal([](auto& c) { c.length = 0; }), HasSubstr("length = 0"));
  EXPECT_THAT(refusal([](auto& c) { c.batch = -4; }), HasSubstr("batch = -4"));
  EXPECT_THAT(refusal([](auto& c) { c.vocabulary = 0; }), HasSubstr("vocabulary = 0"));
  EXPECT_THAT(refusal([](auto& c) { c.prefetch = 0; }), HasSubstr("prefetch = 0"));
  EXPECT_THAT(refusal([](auto& c) { c.first_step = -1; }), HasSubstr("first_step = -1"));
  EXPECT_THAT(refusal([](auto& c) { c.ranks = 0; }), HasSubstr("ranks = 0"));
  EXPECT_THAT(refusal([](auto& c) { c.rank = 1; }), HasSubstr("rank = 1: it must be 0 to 0"));
  EXPECT_THAT(refusal([](auto& c) { c.ranks = 3; }),
              AllOf(HasSubstr("4 rows"), HasSubstr("3 ranks"), HasSubstr("multiple of 3")));
  EXPECT_THAT(refusal([](auto& c) { c.documents = true; }),
              AllOf(HasSubstr("end-of-text"), HasSubstr("set it")));
  EXPECT_THAT(refusal([](auto& c) { c.end_of_text = 50257; }),
              AllOf(HasSubstr("end-of-text token is 50257"), HasSubstr("vocabulary has 50257")));
}

TEST(Loader, EndsWhateverItsThreadDoes) {
  const Files files({100000});
  LoaderConfig config = config_of(Order::kShuffled);
  for (int i = 0; i < 200; ++i) {
    config.prefetch = 1 + i % 8;
    Loader loader(files.paths, config);
    for (int step = 0; step < i % 5; ++step) {
      loader.next();
    }
  }
}

TEST(Loader, EndsInTheMiddleOfABatch) {
  const Files files({100000});
  LoaderConfig config = config_of(Order::kShuffled);
  config.batch = 50'000;
  const auto now = [] { return std::chrono::steady_clock::now(); };
  auto start = now();
  Loader loader(files.paths, config);
  loader.next();
  const auto a_batch = now() - start;
  start = now();
  { const Loader given_up(files.paths, config); }
  EXPECT_LT(now() - start, a_batch / 2);
}

}  // namespace
}  // namespace carope::test
