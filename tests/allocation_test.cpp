// A training step, and the loader that feeds it, allocate nothing once they run.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "data/loader/loader.h"
#include "support/shard_files.h"
#include "support/tokens.h"
#include "train/optimizer.h"

namespace {

std::atomic<std::int64_t> allocations{0};

}  // namespace

// Replaces the program's allocation functions to count what they are asked for.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  allocations.fetch_add(1);
  if (void* data = std::malloc(bytes)) {
    return data;
  }
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(std::size_t bytes, std::align_val_t alignment,
                                     const std::nothrow_t&) noexcept {
  allocations.fetch_add(1);
  void* data = nullptr;
  return posix_memalign(&data, static_cast<std::size_t>(alignment), bytes) == 0 ? data : nullptr;
}
[[gnu::noinline]] void operator delete(void* data, std::align_val_t) noexcept { std::free(data); }
[[gnu::noinline]] void operator delete(void* data) noexcept { std::free(data); }
[[gnu::noinline]] void operator delete(void* data, std::size_t) noexcept { std::free(data); }

namespace carope::test {
namespace {

TEST(TrainingStep, AllocatesNothingOnceItRuns) {
  for (const std::string& encoding : encoding_names()) {
    Gpt model({.layers = 2,
               .heads = 2,
               .width = 16,
               .vocabulary = 32,
               .length = 24,
               .encoding = encoding});
    model.initialise(1);
    Optimizer optimizer(model.parameters(), {});
    Activations a = model.plan({.batch = 2, .length = 24, .purpose = Purpose::kTraining});
    RandomBatch data(2, 24, 32);
    const Batch batch = data.view();
    Context ctx = Context::cpu(2);
    const auto step = [&] {
      model.loss_and_gradients(ctx, batch, a, Write::kOverwrite);
      optimizer.step(ctx, 1e-3);
    };
    step();
    const std::int64_t before = allocations.load();
    step();
    EXPECT_EQ(allocations.load(), before) << encoding;
  }
}

TEST(Loader, AllocatesNothingOnceItRuns) {
  const TemporaryFolder folder;
  const auto shard = write_bytes(folder / "a.bin", shard_bytes(std::vector<std::uint16_t>(1000)));
  Loader loader({shard}, {.length = 16,
                          .batch = 8,
                          .order = Order::kShuffled,
                          .end_of_text = TokenId{0},
                          .documents = true});
  loader.next();
  const std::int64_t before = allocations.load();
  for (int step = 0; step < 50; ++step) {
    loader.next();
  }
  EXPECT_EQ(allocations.load(), before);
}

}  // namespace
}  // namespace carope::test
