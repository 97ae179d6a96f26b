#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "core/cuda.h"
#include "core/file.h"
#include "core/memory.h"
#include "dist/communicator.h"
#include "dist/nccl.h"
#include "support/cuda_contexts.h"
#include "support/errors.h"
#include "support/folder.h"
#include "support/training.h"
#include "train/trainer.h"

// Run by mpirun with 2 and 4 processes, and alone.
namespace carope::test {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

constexpr std::int64_t kSizes[] = {1, 3, 127, 1025, 20011};  // of a part

/// What no two ranks and no two places have in common, and sums of it are exact in f32.
template <class T>
T mark(int rank, std::int64_t i) {
  return static_cast<T>((rank + 1) * 7 + i % 1009);
}
template <>
Bf16 mark<Bf16>(int rank, std::int64_t i) {
  return {mark<std::uint16_t>(rank, i)};
}

template <class T>
bool same_bytes(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

template <class T>
std::vector<T> marks(int rank, std::int64_t count) {
  std::vector<T> values(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    values[static_cast<std::size_t>(i)] = mark<T>(rank, i);
  }
  return values;
}

template <class T>
std::vector<T> sums_of_marks(int ranks, std::int64_t count) {
  std::vector<T> sums(static_cast<std::size_t>(count));
  for (int rank = 0; rank < ranks; ++rank) {
    const std::vector<T> values = marks<T>(rank, count);
    std::transform(sums.begin(), sums.end(), values.begin(), sums.begin(), std::plus<T>());
  }
  return sums;
}

template <class T>
Tensor view(std::vector<T>& values, std::int64_t begin, std::int64_t count) {
  return Tensor(values.data() + begin, {{count}, kDTypeOf<T>});
}
template <class T>
Tensor view(std::vector<T>& values) {
  return view(values, 0, static_cast<std::int64_t>(values.size()));
}

/// The ranks of this run: a process can join them once.
class Ranks : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    ranks_ = make_communicator(launch_from_environment(), {}, std::chrono::seconds(20));
  }
  static void TearDownTestSuite() { ranks_.reset(); }

  template <class T>
  void expect_sums(std::int64_t part) {
    const int size = ranks_->size();
    const int rank = ranks_->rank();
    const std::vector<T> expected = sums_of_marks<T>(size, part * size);
    const std::vector<T> expected_part(expected.begin() + rank * part,
                                       expected.begin() + (rank + 1) * part);
    std::vector<T> all = marks<T>(rank, part * size);
    std::vector<T> scattered = all;
    std::vector<T> inside = all;
    std::vector<T> own(static_cast<std::size_t>(part));
    ranks_->all_reduce(ctx_, view(all));
    ranks_->reduce_scatter(ctx_, view(scattered), view(own));
    ranks_->reduce_scatter(ctx_, view(inside), view(inside, rank * part, part));
    ranks_->join(ctx_);
    EXPECT_EQ(all, expected);
    EXPECT_EQ(own, expected_part);
    EXPECT_EQ(std::vector<T>(inside.begin() + rank * part, inside.begin() + (rank + 1) * part),
              expected_part);
  }

  template <class T>
  void expect_copies(std::int64_t part) {
    const int size = ranks_->size();
    const int rank = ranks_->rank();
    std::vector<T> own = marks<T>(rank, part);
    std::vector<T> gathered(static_cast<std::size_t>(part * size));
    std::vector<T> inside = gathered;
    std::copy(own.begin(), own.end(), inside.begin() + rank * part);
    std::vector<T> sent = own;
    ranks_->all_gather(ctx_, view(own), view(gathered));
    ranks_->all_gather(ctx_, view(inside, rank * part, part), view(inside));
    ranks_->broadcast(ctx_, view(sent), size - 1);
    ranks_->join(ctx_);
    std::vector<T> expected;
    for (int i = 0; i < size; ++i) {
      const std::vector<T> theirs = marks<T>(i, part);
      expected.insert(expected.end(), theirs.begin(), theirs.end());
    }
    EXPECT_TRUE(same_bytes(gathered, expected));
    EXPECT_TRUE(same_bytes(inside, expected));
    EXPECT_TRUE(same_bytes(sent, marks<T>(size - 1, part)));
  }

  static std::unique_ptr<Communicator> ranks_;
  Context ctx_ = Context::cpu(1);
};

std::unique_ptr<Communicator> Ranks::ranks_;

TEST_F(Ranks, AreThoseThatWereLaunched) {
  const Launch launch = launch_from_environment();
  EXPECT_EQ(ranks_->rank(), launch.rank);
  EXPECT_EQ(ranks_->size(), launch.world_size);
}

TEST_F(Ranks, SumWhatIsToBeSummed) {
  for (const std::int64_t part : kSizes) {
    SCOPED_TRACE(part);
    expect_sums<float>(part);
    expect_sums<double>(part);
  }
}

TEST_F(Ranks, CarryEveryType) {
  for (const std::int64_t part : kSizes) {
    SCOPED_TRACE(part);
    expect_copies<float>(part);
    expect_copies<double>(part);
    expect_copies<Bf16>(part);
    expect_copies<std::uint16_t>(part);
    expect_copies<std::int32_t>(part);
    expect_copies<std::uint32_t>(part);
  }
}

TEST_F(Ranks, GetTheSameBits) {
  std::vector<float> values(4099);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = 1.0F / static_cast<float>(3 + ranks_->rank() * 5 + static_cast<int>(i));
  }
  ranks_->all_reduce(ctx_, view(values));
  ranks_->join(ctx_);
  std::vector<float> first = values;
  ranks_->broadcast(ctx_, view(first), 0);
  ranks_->join(ctx_);
  EXPECT_EQ(values, first);
}

TEST_F(Ranks, DoOneThingAfterTheOther) {
  const int size = ranks_->size();
  std::vector<double> values(5, 1.0);
  std::vector<double> gathered(values.size() * static_cast<std::size_t>(size));
  for (int i = 0; i < 10; ++i) {
    ranks_->all_reduce(ctx_, view(values));
  }
  ranks_->all_gather(ctx_, view(values), view(gathered));
  ranks_->all_reduce(ctx_, view(values));
  ranks_->join(ctx_);
  EXPECT_THAT(gathered, Each(std::pow(size, 10)));
  EXPECT_THAT(values, Each(std::pow(size, 11)));
}

/// Says or hears from another rank of this machine, not by the communicator, that something is
/// done.
class Sign {
 public:
  explicit Sign(const std::string& name)
      : path_(std::filesystem::temp_directory_path() /
              ("carope-" + name + "-" + std::to_string(getppid()))) {}
  void give() const { std::ofstream(path_) << "done"; }
  bool wait() const {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!std::filesystem::exists(path_) && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return std::filesystem::exists(path_);
  }
  void take_down() const { std::filesystem::remove(path_); }

 private:
  std::filesystem::path path_;
};

TEST_F(Ranks, GoOnWhileTheCallerComputes) {
  if (ranks_->size() == 1) {
    GTEST_SKIP() << "there is nobody to wait for";
  }
  // The first rank gives its share before the second does, and comes back when others have the sum.
  const Sign issued("issued");
  const Sign summed("summed");
  issued.take_down();
  summed.take_down();
  ranks_->meet();
  std::vector<float> values(1 << 16, 1.0F);
  if (ranks_->rank() == 1) {
    EXPECT_TRUE(issued.wait()) << "the first rank waits for this one";
  }
  ranks_->all_reduce(ctx_, view(values));
  if (ranks_->rank() == 0) {
    issued.give();
    EXPECT_TRUE(summed.wait()) << "the second rank waits for this one";
  }
  ranks_->join(ctx_);
  if (ranks_->rank() == 1) {
    summed.give();
  }
  EXPECT_EQ(values, std::vector<float>(values.size(), static_cast<float>(ranks_->size())));
  ranks_->meet();
  issued.take_down();
  summed.take_down();
}

TEST_F(Ranks, SumAndGatherOnTheHost) {
  const int size = ranks_->size();
  const int rank = ranks_->rank();
  std::vector<double> values = marks<double>(rank, 11);
  ranks_->sum(values);
  EXPECT_EQ(values, sums_of_marks<double>(size, 11));

  // As many values as the rank's number: none of the first.
  const std::vector<double> own(static_cast<std::size_t>(rank), rank);
  std::vector<double> expected;
  for (int i = 0; i < size; ++i) {
    expected.insert(expected.end(), static_cast<std::size_t>(i), i);
  }
  EXPECT_EQ(ranks_->gather(own), expected);
  EXPECT_THAT(ranks_->gather({}), SizeIs(0));
}

TEST_F(Ranks, Meet) {
  using Clock = std::chrono::steady_clock;
  // A barrier: nobody leaves before the last has come. All ranks of this machine share a clock.
  if (ranks_->rank() == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  const double came = std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
  ranks_->meet();
  const double left = std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
  const std::vector<double> all_came = ranks_->gather({&came, 1});
  EXPECT_GE(left, *std::max_element(all_came.begin(), all_came.end()));
}

TEST_F(Ranks, RefuseWhatCannotBeShared) {
  const int size = ranks_->size();
  std::vector<Bf16> halves(6);
  std::vector<float> values(static_cast<std::size_t>(size) * 2);
  std::vector<float> own(3);
  EXPECT_THAT(message_of<ShapeError>([&] { ranks_->all_reduce(ctx_, view(halves)); }),
              HasSubstr("f32 and f64, not bf16"));
  EXPECT_THAT(
      message_of<ShapeError>([&] { ranks_->reduce_scatter(ctx_, view(values), view(own)); }),
      HasSubstr("a part of 3 f32"));
  EXPECT_THAT(message_of<ShapeError>([&] { ranks_->all_gather(ctx_, view(own), view(values)); }),
              HasSubstr("equal parts"));
  EXPECT_THAT(message_of<ShapeError>([&] { ranks_->broadcast(ctx_, view(values), size); }),
              HasSubstr("cannot be the root"));
}

/// NCCL with one rank, as torchrun starts it: all that one GPU can show.
class OneGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (!nccl::compiled() || !has_gpu()) {
      GTEST_SKIP() << (nccl::compiled() ? "no GPU is present" : "built without NCCL");
    }
    ctx_ = std::make_unique<Context>(Context::cuda(0));
    ranks_ = make_communicator({.launcher = Launcher::kTorchrun}, ctx_->device(),
                               std::chrono::seconds(20));
  }

  /// Expects operations on `from` to bring what it holds to `to`, and to begin when it holds it.
  template <class T, class Operations>
  void expect_kept(const Operations& operations) {
    constexpr std::int64_t kCount = 100003;
    const std::vector<T> sent = marks<T>(0, kCount);
    const Memory memory(ctx_->device(), 2 * kCount * sizeof(T));
    const Tensor both(memory.data(), {{2, kCount}, kDTypeOf<T>}, ctx_->device());
    const Tensor from = both.slice_rows(0, 1);
    const Tensor to = both.slice_rows(1, 2);
    for (int i = 0; i < 10; ++i) {
      clear(*ctx_, both);
      upload(*ctx_, sent.data(), from);
      operations(from, to);
      ranks_->join(*ctx_);
      std::vector<T> got(sent.size());
      download(*ctx_, to, got.data());
      wait(*ctx_);
      ASSERT_TRUE(same_bytes(got, sent)) << to_string(from.dtype());
    }
  }

  template <class T>
  void expect_copies() {
    expect_kept<T>([&](const Tensor& from, const Tensor& to) {
      ranks_->all_gather(*ctx_, from, to);
      ranks_->all_gather(*ctx_, to, to);
      ranks_->broadcast(*ctx_, to, 0);
    });
  }

  template <class T>
  void expect_sums() {
    expect_kept<T>([&](const Tensor& from, const Tensor& to) {
      ranks_->all_reduce(*ctx_, from);
      ranks_->reduce_scatter(*ctx_, from, to);
      ranks_->reduce_scatter(*ctx_, to, to);
    });
  }

  std::unique_ptr<Context> ctx_;
  std::unique_ptr<Communicator> ranks_;
};

TEST_F(OneGpu, SumsAndCarriesByNccl) {
  EXPECT_EQ(ranks_->rank(), 0);
  EXPECT_EQ(ranks_->size(), 1);
  expect_sums<float>();
  expect_sums<double>();
  expect_copies<float>();
  expect_copies<double>();
  expect_copies<Bf16>();
  expect_copies<std::int32_t>();

  const Memory memory(ctx_->device(), 64);
  const Tensor halves(memory.data(), {{3}, DType::kBF16}, ctx_->device());
  EXPECT_THAT(message_of<ShapeError>([&] { ranks_->all_reduce(*ctx_, halves); }),
              HasSubstr("bf16"));
  std::vector<float> on_cpu(3);  // which a run of one process would take
  EXPECT_THAT(message_of<ShapeError>([&] { ranks_->all_reduce(*ctx_, view(on_cpu)); }),
              HasSubstr("not on cpu"));
}

TEST_F(OneGpu, SumsAndGathersOnTheHost) {
  std::vector<double> values = {1.0, 2.0};
  ranks_->sum(values);
  ranks_->sum({});
  EXPECT_THAT(values, ElementsAre(1.0, 2.0));
  EXPECT_THAT(ranks_->gather(values), ElementsAre(1.0, 2.0));
  EXPECT_THAT(ranks_->gather({}), SizeIs(0));
  ranks_->meet();
}

/// The losses and norms of a few steps in a new folder, and what the last checkpoint holds.
std::vector<std::string> train(Context& ctx, Communicator& ranks, const std::filesystem::path& data,
                               const std::filesystem::path& folder) {
  const RunConfig config = read_run({{"data", {{"path", data.string()}}},
                                     {"model",
                                      {{"vocabulary", std::int64_t{50}},
                                       {"layers", std::int64_t{3}},
                                       {"heads", std::int64_t{2}},
                                       {"width", std::int64_t{128}},
                                       {"length", std::int64_t{32}}}},
                                     {"train",
                                      {{"batch_tokens", std::int64_t{256}},
                                       {"micro_batch", std::int64_t{4}},
                                       {"tokens", std::int64_t{256 * 20}},
                                       {"learning_rate", 1e-2},
                                       {"warmup_steps", std::int64_t{5}}}}});
  std::vector<std::string> results;
  TrainObserver observer;
  observer.step = [&](const StepMetrics& metrics) {
    results.push_back(fmt::format("{} {}", metrics.loss, metrics.norm));
  };
  observer.validation = [&](const ValidationMetrics& metrics) {
    results.push_back(fmt::format("{}", metrics.loss));
  };
  observer.checkpoint = [&](const std::filesystem::path& checkpoint) {
    results.push_back(read_file(checkpoint / "model.safetensors"));
    results.push_back(read_file(checkpoint / "optimizer.safetensors"));
  };
  constexpr std::size_t kSmallBuckets = 100 << 10;  // so that there are several
  Trainer trainer(ctx, ranks, config, folder, {.bucket_bytes = kSmallBuckets});
  trainer.run(observer, false);
  return results;
}

TEST_F(OneGpu, TrainsBitForBitAsWithoutNccl) {
  const TemporaryFolder folder;
  write_training_data(folder / "data");
  const std::unique_ptr<Communicator> alone = make_alone();
  ctx_->set_deterministic(true);
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    SCOPED_TRACE(to_string(compute));
    ctx_->set_compute(compute);
    const std::string name(to_string(compute));
    const auto expected = train(*ctx_, *alone, folder / "data", folder / (name + "-alone"));
    const auto found = train(*ctx_, *ranks_, folder / "data", folder / (name + "-nccl"));
    EXPECT_THAT(expected, SizeIs(23));  // steps, a validation, and a checkpoint's two files
    EXPECT_TRUE(found == expected) << found.front() << " at first, not " << expected.front();
  }
}

}  // namespace
}  // namespace carope::test
