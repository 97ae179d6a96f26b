#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>

#include "core/arena.h"
#include "core/cuda.h"
#include "core/json.h"
#include "core/parallel.h"
#include "core/random.h"
#include "support/cuda_contexts.h"
#include "support/deep_json.h"
#include "support/errors.h"

namespace carope::test {
namespace {

using Json = nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

TEST(Tensor, IsAView) {
  std::vector<float> values(24);
  const Tensor tensor = Tensor::of(values, {2, 3, 4});
  EXPECT_EQ(tensor.rows(), 6);
  EXPECT_EQ(tensor.cols(), 4);
  tensor.slice_rows(1, 3).f32()[0] = 5.0F;
  EXPECT_EQ(values[4], 5.0F);
  EXPECT_EQ(tensor.reshape({6, 4}).shape(), (Shape{6, 4}));
  EXPECT_FALSE(Tensor{});
}

TEST(Tensor, RefusesWhatDoesNotFit) {
  std::vector<float> values(6);
  const Tensor tensor = Tensor::of(values, {2, 3});
  EXPECT_THAT(message_of<ShapeError>([&] { Tensor::of(values, {7}); }), HasSubstr("[7]"));
  EXPECT_THAT(message_of<ShapeError>([&] { tensor.reshape({4}); }), HasSubstr("[2, 3]"));
  EXPECT_THAT(message_of<ShapeError>([&] { tensor.slice_rows(1, 3); }), HasSubstr("2 rows"));
  EXPECT_THAT(message_of<ShapeError>([&] { tensor.data<std::int32_t>(); }),
              HasSubstr("f32 tensor was read as i32"));
  EXPECT_THAT(message_of<ShapeError>([&] {
                check_shape(tensor, {3, 2}, "q");
              }),
              HasSubstr("q has shape [2, 3], expected [3, 2]"));
  EXPECT_THAT(message_of<ShapeError>([&] { check_shape({}, {3}, "q"); }), HasSubstr("missing"));
  EXPECT_THAT(message_of<ShapeError>([] { Shape{1, 1, 1, 1, 1}; }), HasSubstr("at most 4"));
  EXPECT_THAT(message_of<ShapeError>([] {
                Shape({std::int64_t{1} << 40, std::int64_t{1} << 40}).size();
              }),
              HasSubstr("not possible"));
  EXPECT_THAT(message_of<ShapeError>([] { Shape({3, -1}).size(); }), HasSubstr("[3, -1]"));
}

TEST(Arena, PlacesTensorsApartAndAligned) {
  Tensor a;
  Tensor b;
  const Arena arena = Arena::plan({}, [&](Arena& plan) {
    a = plan.take({3, 5});
    b = plan.take({{7}, DType::kU32});
  });
  EXPECT_GE(arena.bytes(), a.bytes() + b.bytes());
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a.f32()) % Memory::kAlignment, 0U);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(b.data<std::uint32_t>()) % Memory::kAlignment, 0U);
  std::fill_n(a.f32(), a.size(), 1.0F);
  std::fill_n(b.data<std::uint32_t>(), b.size(), 9U);
  for (std::int64_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a.f32()[i], 1.0F);
  }
}

TEST(Arena, RefusesALayoutThatChanges) {
  int runs = 0;
  EXPECT_THROW(Arena::plan({}, [&](Arena& plan) { plan.take({++runs * 1000}); }), Error);
}

TEST(Context, RefusesImpossibleThreads) {
  EXPECT_THAT(message_of<ConfigError>([] { Context::cpu(-1); }), HasSubstr("threads = -1"));
  EXPECT_GE(Context::cpu().threads(), 1);
}

struct Plans {
  explicit Plans(const Context& ctx) : threads(ctx.threads()) {}
  int threads;
  std::shared_ptr<int> lent = std::make_shared<int>(0);
};

struct OtherPlans : Plans {
  using Plans::Plans;
};

TEST(Context, KeepsOneStateOfAType) {
  std::weak_ptr<int> lent;
  {
    Context first = Context::cpu(3);
    Plans& plans = first.state<Plans>();
    EXPECT_EQ(plans.threads, 3);
    EXPECT_EQ(&first.state<Plans>(), &plans);
    EXPECT_NE(static_cast<Plans*>(&first.state<OtherPlans>()), &plans);
    EXPECT_NE(&Context::cpu(3).state<Plans>(), &plans);
    lent = plans.lent;
    Context moved = std::move(first);
    EXPECT_EQ(&moved.state<Plans>(), &plans);
    EXPECT_FALSE(lent.expired());
  }
  EXPECT_TRUE(lent.expired());
}

TEST(Context, TriesAgainToMakeAStateThatCouldNotBeMade) {
  struct Picky {
    explicit Picky(const Context& ctx) {
      check<DeviceError>(!ctx.deterministic(), "no deterministic kernel");
    }
  };
  Context ctx = Context::cpu(1);
  EXPECT_FALSE(ctx.deterministic());
  ctx.set_deterministic(true);
  EXPECT_THROW(ctx.state<Picky>(), DeviceError);
  ctx.set_deterministic(false);
  EXPECT_NO_THROW(ctx.state<Picky>());
}

TEST(Context, WithoutAGpuSaysSo) {
  if (!cuda::devices().empty()) {
    GTEST_SKIP() << "a GPU is present";
  }
  EXPECT_THAT(message_of<DeviceError>([] { Context::cuda(0); }),
              HasSubstr(cuda::compiled() ? "0 CUDA devices are present" : "built without CUDA"));
  if (!cuda::compiled()) {
    EXPECT_THAT(message_of<DeviceError>([] {
                  Memory({DeviceKind::kCuda, 0}, 16);
                }),
                HasSubstr("built without CUDA"));
  }
}

TEST(Context, ServesGpusFromCompute8On) {
  EXPECT_FALSE(cuda::is_served({.name = "Tesla T4", .compute_major = 7, .compute_minor = 5}));
  EXPECT_TRUE(cuda::is_served({.name = "A100", .compute_major = 8, .compute_minor = 0}));
  EXPECT_TRUE(cuda::is_served({.name = "B200", .compute_major = 10, .compute_minor = 0}));
}

TEST(Context, WithAGpuMovesBytes) {
  if (!has_gpu()) {
    GTEST_SKIP() << "no GPU is present";
  }
  const Device device{DeviceKind::kCuda, 0};
  const std::vector<std::uint32_t> values{1, 2, 3, 4000000000U};
  std::vector<std::uint32_t> back(4);
  Memory memory;
  const Tensor tensor = upload(device, values, memory);
  cuda::copy_to_host(0, back.data(), tensor.data<std::uint32_t>(), tensor.bytes());
  EXPECT_EQ(back, values);
  clear(memory.data(), memory.bytes(), device);
  cuda::copy_to_host(0, back.data(), memory.data(), memory.bytes());
  EXPECT_EQ(back, std::vector<std::uint32_t>(4, 0));
  EXPECT_THROW(cuda::allocate(0, std::size_t{1} << 50), DeviceError);
  EXPECT_THROW(Context::cuda(99), DeviceError);
  Context ctx = Context::cuda(0);
  EXPECT_NE(ctx.stream(), nullptr);
}

TEST(ParallelFor, VisitsEveryIndexOnce) {
  for (const int threads : {1, 2, 8}) {
    const Context ctx = Context::cpu(threads);
    std::vector<int> visits(1000);
    parallel_blocks(ctx, 1000, 7, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        ++visits[static_cast<std::size_t>(i)];
      }
    });
    EXPECT_EQ(visits, std::vector<int>(1000, 1));
    parallel_for(ctx, 0, [](std::int64_t) { FAIL(); });
  }
}

TEST(ParallelFor, PassesExceptionsOn) {
  for (const int threads : {1, 8}) {
    const Context ctx = Context::cpu(threads);
    std::atomic<int> visits{0};
    EXPECT_THAT(message_of<Error>([&] {
                  parallel_for(ctx, 100, [&](std::int64_t i) {
                    ++visits;
                    check<Error>(i != 37, "task {} failed", i);
                  });
                }),
                HasSubstr("task 37 failed"));
    EXPECT_EQ(visits, 100);
  }
}

TEST(Philox, MatchesItsPublishedTestVectors) {
  // Known answers for 10 rounds: counter and key all zeros, and all ones.
  EXPECT_EQ(Philox(0, 0)(0),
            (std::array<std::uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const std::uint64_t ones = ~std::uint64_t{0};
  EXPECT_EQ(Philox(ones, ones)(ones),
            (std::array<std::uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
}

TEST(Philox, HasTheRightMoments) {
  const Philox random(1, 2);
  constexpr int kCount = 100000;
  double sum = 0.0;
  double squares = 0.0;
  double uniform = 0.0;
  for (std::uint64_t i = 0; i < kCount; ++i) {
    const double x = random.normal(i);
    sum += x;
    squares += x * x;
    uniform += random.uniform(i);
    EXPECT_LT(random.below(10, i), 10U);
  }
  EXPECT_NEAR(sum / kCount, 0.0, 0.015);
  EXPECT_NEAR(squares / kCount, 1.0, 0.02);
  EXPECT_NEAR(uniform / kCount, 0.5, 0.005);
}

TEST(ParseJson, RefusesOnlyWhatNestsTooDeep) {
  const auto refusal = [](const std::string& text) {
    return message_of<FileError>([&] { parse_json<Json>(text, "a.json"); });
  };
  EXPECT_EQ(refusal(deep_json(64)), "(nothing thrown)");
  for (const std::string& deep : {deep_json(65), deep_json(), std::string(200'000, '[')}) {
    EXPECT_THAT(refusal(deep), AllOf(HasSubstr("a.json has lists and objects"),
                                     HasSubstr("more than 64 deep at byte 64")));
  }
  EXPECT_THAT(refusal(R"(["[[\"", )" + deep_json(64) + "]"), HasSubstr("at byte 72"));
  std::string objects = "0";
  for (int i = 0; i < 65; ++i) {
    objects = R"({"a": )" + objects + "}";
  }
  EXPECT_THAT(refusal(objects), HasSubstr("more than 64 deep"));
}

TEST(ParseJson, CountsNoBracketsInTextNorThoseThatAreClosed) {
  const std::string brackets(1000, '[');
  const Json text{{"\"" + brackets, "\\" + brackets}};
  EXPECT_EQ(parse_json<Json>(text.dump(), "a.json"), text);
  const Json wide(1000, Json::array({Json::object()}));
  EXPECT_EQ(parse_json<Json>(wide.dump(), "a.json"), wide);
}

TEST(ParseJson, LeavesToItsCallerWhatIsNoJson) {
  EXPECT_THROW(parse_json<Json>("[", "a.json"), Json::parse_error);
  EXPECT_TRUE(parse_json<Json>("[", "a.json", false).is_discarded());
}

}  // namespace
}  // namespace carope::test
