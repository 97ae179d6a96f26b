// How much of the exchange of gradients hides behind the backward pass, on CPU ranks. In turns: the
// gradients of a step alone, with an exchange that begins when all are there, and with one that
// begins with the first bucket. To be started by mpirun.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <array>
#include <chrono>
#include <thread>

#include "dist/communicator.h"
#include "dist/worker.h"
#include "model/gpt.h"
#include "series.h"
#include "train/gradient_exchange.h"

namespace carope {
namespace {

struct BenchSettings {
  GptConfig model{.layers = 8, .heads = 4, .width = 256, .vocabulary = 2048, .length = 128};
  std::int64_t batch = 4;
  std::int64_t bucket_kib = 1024;
  double link = 0.0;  // bytes a second; 0: as fast as the ranks are connected
  int threads = 1;
  int rounds = 15;
};

/// Other ranks behind a link: an operation takes at least as long as its bytes need there, without
/// using a core meanwhile, as network cards and GPUs' copy engines do it.
class Linked : public Communicator {
 public:
  Linked(std::unique_ptr<Communicator> ranks, double bandwidth)
      : ranks_(std::move(ranks)), bandwidth_(bandwidth) {}

  int rank() const override { return ranks_->rank(); }
  int size() const override { return ranks_->size(); }

  void all_reduce(Context& ctx, const Tensor& values) override {
    give(ctx, 2 * values.bytes(), [=, this, &ctx] { ranks_->all_reduce(ctx, values); });
  }
  void reduce_scatter(Context& ctx, const Tensor& values, const Tensor& own) override {
    give(ctx, values.bytes(), [=, this, &ctx] { ranks_->reduce_scatter(ctx, values, own); });
  }
  void all_gather(Context& ctx, const Tensor& own, const Tensor& values) override {
    give(ctx, values.bytes(), [=, this, &ctx] { ranks_->all_gather(ctx, own, values); });
  }
  void broadcast(Context& ctx, const Tensor& values, int root) override {
    give(ctx, values.bytes(), [=, this, &ctx] { ranks_->broadcast(ctx, values, root); });
  }
  void join(Context& /*ctx*/) override { worker_.wait(); }

  void sum(std::span<double> values) override {
    worker_.wait();
    ranks_->sum(values);
  }
  std::vector<double> gather(std::span<const double> values) override {
    worker_.wait();
    return ranks_->gather(values);
  }
  void meet() override {
    worker_.wait();
    ranks_->meet();
  }

 private:
  /// Each rank sends all but its own part of the bytes, as in a ring.
  template <class Operation>
  void give(Context& ctx, std::size_t bytes, Operation operation) {
    const double sent = static_cast<double>(bytes) * (size() - 1) / size();
    const auto least = std::chrono::duration<double>(bandwidth_ > 0.0 ? sent / bandwidth_ : 0.0);
    worker_.give([this, &ctx, operation = std::move(operation), least] {
      const auto end = std::chrono::steady_clock::now() + least;
      operation();
      ranks_->join(ctx);
      std::this_thread::sleep_until(end);
    });
  }

  std::unique_ptr<Communicator> ranks_;
  double bandwidth_;
  Worker worker_;
};

enum class Exchange : std::uint8_t { kNone, kAfter, kBeside };

void run(const BenchSettings& settings) {
  Linked ranks(make_communicator(launch_from_environment(), {}, std::chrono::seconds(60)),
               settings.link);
  Context ctx = Context::cpu(settings.threads);
  Gpt model(settings.model, {}, DType::kF32,
            {.rank = ranks.rank(),
             .ranks = ranks.size(),
             .bucket_bytes = static_cast<std::size_t>(settings.bucket_kib) << 10});
  model.initialise(1);
  Activations activations = model.plan(
      {.batch = settings.batch, .length = settings.model.length, .purpose = Purpose::kTraining});
  GradientExchange exchange(ranks, model.memory(), {}, Sums::kFast);
  std::vector<std::int32_t> tokens;
  for (std::uint32_t i = 0; i < settings.batch * settings.model.length; ++i) {
    tokens.push_back(static_cast<std::int32_t>(
        ((i * 2654435761U) >> 8) % static_cast<std::uint32_t>(settings.model.vocabulary)));
  }
  const Shape shape{settings.batch, settings.model.length};
  const Batch batch{.seq = {.batch = settings.batch, .length = settings.model.length},
                    .tokens = Tensor::of(tokens, shape),
                    .targets = Tensor::of(tokens, shape)};
  const auto step = [&](Exchange how) {
    const auto finished = [&](std::int64_t block) { exchange.finished(ctx, block, true, true); };
    model.gradients(ctx, batch, activations, Write::kOverwrite, 1.0,
                    how == Exchange::kBeside ? BlockFinished(finished) : BlockFinished());
    for (std::int64_t block = settings.model.layers; how == Exchange::kAfter && block-- > -1;) {
      finished(block);
    }
    exchange.join(ctx);
  };

  std::array<Series, 3> times;
  for (int round = -1; round < settings.rounds; ++round) {  // the first round only warms up
    for (const Exchange how : {Exchange::kNone, Exchange::kAfter, Exchange::kBeside}) {
      ranks.meet();
      double elapsed = seconds([&] { step(how); });
      // A step takes as long as on the slowest rank.
      const std::vector<double> all = ranks.gather({&elapsed, 1});
      if (round >= 0) {
        times[static_cast<std::size_t>(how)].values.push_back(
            *std::max_element(all.begin(), all.end()));
      }
    }
  }
  if (ranks.rank() != 0) {
    return;
  }
  Series hidden;
  for (std::size_t i = 0; i < times[0].values.size(); ++i) {
    const double exposed = times[1].values[i] - times[0].values[i];
    hidden.values.push_back((times[1].values[i] - times[2].values[i]) / exposed);
  }
  std::size_t bytes = 0;
  for (const Bucket& bucket : model.memory().buckets()) {
    bytes += bucket.gradients.bytes();
  }
  fmt::print(
      "{} ranks of {} threads, {} layers, width {}, vocabulary {}, {} x {} tokens a rank, {:.1f} "
      "MB "
      "of gradients in {} buckets, {}, {} rounds; median [quartiles]\n",
      ranks.size(), ctx.threads(), settings.model.layers, settings.model.width,
      settings.model.vocabulary, settings.batch, settings.model.length,
      static_cast<double>(bytes) / 1e6, model.memory().buckets().size(),
      settings.link > 0.0 ? fmt::format("a link of {:.0f} MB/s", settings.link / 1e6)
                          : "memory of one machine",
      settings.rounds);
  fmt::print("gradients alone          {:>26} ms\n", times[0].spread(1e3));
  fmt::print("exchange after them      {:>26} ms\n", times[1].spread(1e3));
  fmt::print("exchange beside them     {:>26} ms\n", times[2].spread(1e3));
  fmt::print("hidden of the exchange   {:>26} %\n", hidden.spread(1e2));
}

}  // namespace
}  // namespace carope

int main(int argc, char** argv) {
  carope::BenchSettings settings;
  double megabytes = 0.0;
  CLI::App app("Measures how much of the exchange of gradients hides behind the backward pass.");
  app.add_option("--layers", settings.model.layers)->capture_default_str();
  app.add_option("--heads", settings.model.heads)->capture_default_str();
  app.add_option("--width", settings.model.width)->capture_default_str();
  app.add_option("--vocabulary", settings.model.vocabulary)->capture_default_str();
  app.add_option("--length", settings.model.length)->capture_default_str();
  app.add_option("--batch", settings.batch, "rows a rank")->capture_default_str();
  app.add_option("--bucket", settings.bucket_kib, "KiB of gradients that are exchanged at once")
      ->capture_default_str();
  app.add_option("--link", megabytes, "MB/s that a rank can send; 0: as fast as it is")
      ->capture_default_str();
  app.add_option("--threads", settings.threads)->capture_default_str();
  app.add_option("--rounds", settings.rounds)->check(CLI::PositiveNumber)->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  settings.link = megabytes * 1e6;
  try {
    carope::run(settings);
  } catch (const carope::Error& error) {
    fmt::print(stderr, "overlap_bench: {}\n", error.what());
    return 1;
  }
  return 0;
}
