// Times whole training steps on a GPU with several encodings that take turns in one process, so
// that all of them meet the same clocks and heat; also how long the host takes to issue a
// micro-step.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "model/gpt.h"
#include "series.h"
#include "train/optimizer.h"

namespace carope {
namespace {

struct BenchSettings {
  GptConfig model{.layers = 12, .heads = 12, .width = 768, .vocabulary = 50304, .length = 512};
  std::vector<std::string> encodings{"rope", "carope"};
  std::int64_t micro_batch = 128;
  std::int64_t batch_tokens = 524288;
  int rounds = 10;
  bool deterministic = false;
};

/// Everything one encoding needs to take steps on a fixed micro-batch of random tokens.
class Trainee {
 public:
  Trainee(Context& ctx, const BenchSettings& settings, const std::string& encoding)
      : model_(config_for(settings, encoding), ctx.device(), ctx.compute()),
        optimizer_(model_.parameters(), {}),
        activations_(model_.plan({.batch = settings.micro_batch,
                                  .length = settings.model.length,
                                  .purpose = Purpose::kTraining})),
        micro_steps_(settings.batch_tokens / settings.model.length / settings.micro_batch) {
    model_.initialise(1);
    const std::int64_t count = settings.micro_batch * settings.model.length;
    const auto vocabulary = static_cast<std::uint32_t>(settings.model.vocabulary);
    std::vector<std::int32_t> tokens;
    for (std::uint32_t i = 0; i < count; ++i) {
      tokens.push_back(static_cast<std::int32_t>(((i * 2654435761U) >> 8) % vocabulary));
    }
    const Tensor view = Tensor::of(tokens, {settings.micro_batch, settings.model.length});
    batch_ = device_batch_.upload(
        ctx,
        {.seq = {.batch = settings.micro_batch, .length = settings.model.length},
         .tokens = view,
         .targets = view},
        settings.model.vocabulary);
  }

  struct Times {
    double issued;  // seconds until the first micro-step had been issued
    double done;    // until all of the step was done
  };

  Times step(Context& ctx) {
    Times times{};
    times.done = seconds([&] {
      times.issued = seconds([&] { micro_step(ctx, Write::kOverwrite); });
      for (std::int64_t i = 1; i < micro_steps_; ++i) {
        micro_step(ctx, Write::kAccumulate);
      }
      optimizer_.step(ctx, 1e-4);  // returns the gradient's norm, so it waits
    });
    return times;
  }

 private:
  static GptConfig config_for(const BenchSettings& settings, const std::string& encoding) {
    GptConfig config = settings.model;
    config.encoding = encoding;
    return config;
  }

  void micro_step(Context& ctx, Write write) {
    model_.gradients(ctx, batch_, activations_, write, 1.0 / static_cast<double>(micro_steps_));
  }

  Gpt model_;
  Optimizer optimizer_;
  Activations activations_;
  std::int64_t micro_steps_;
  DeviceBatch device_batch_;
  Batch batch_;
};

void run(const BenchSettings& settings) {
  constexpr int kWarmUp = 3;  // rounds, of which the first chooses algorithms
  Context ctx = Context::cuda();
  ctx.set_compute(DType::kBF16);
  ctx.set_deterministic(settings.deterministic);
  std::vector<std::unique_ptr<Trainee>> trainees;
  for (const std::string& encoding : settings.encodings) {
    trainees.push_back(std::make_unique<Trainee>(ctx, settings, encoding));
  }
  std::vector<Series> times(trainees.size()), issued(trainees.size());
  for (int round = -kWarmUp; round < settings.rounds; ++round) {
    for (std::size_t i = 0; i < trainees.size(); ++i) {
      const Trainee::Times step = trainees[i]->step(ctx);
      if (round >= 0) {
        times[i].values.push_back(step.done);
        issued[i].values.push_back(step.issued);
      }
    }
  }
  fmt::print(
      "{} layers, width {}, {} heads, vocabulary {}, {} tokens, {} at a time, {} a step, {} "
      "rounds{}\n"
      "median [quartiles]; ratios are taken round by round\n",
      settings.model.layers, settings.model.width, settings.model.heads, settings.model.vocabulary,
      settings.model.length, settings.micro_batch * settings.model.length, settings.batch_tokens,
      settings.rounds, settings.deterministic ? ", deterministic" : "");
  fmt::print("{:<12} {:>26} {:>24} {:>26} {:>28}\n", "encoding", "ms a step", "k tokens/s",
             "speed, of the first", "ms to issue a micro-step");
  for (std::size_t i = 0; i < trainees.size(); ++i) {
    Series rate;
    for (const double elapsed : times[i].values) {
      rate.values.push_back(static_cast<double>(settings.batch_tokens) / elapsed);
    }
    fmt::print("{:<12} {:>26} {:>24} {:>26} {:>28}\n", settings.encodings[i], times[i].spread(1e3),
               fmt::format("{:.1f} [{:.1f}, {:.1f}]", rate.median() / 1e3,
                           rate.quantile(0.25) / 1e3, rate.quantile(0.75) / 1e3),
               ratio(times[0], times[i]).spread(), issued[i].spread(1e3));
  }
}

}  // namespace
}  // namespace carope

int main(int argc, char** argv) {
  carope::BenchSettings settings;
  CLI::App app("Times training steps of several encodings on a GPU, in turns.");
  app.add_option("--layers", settings.model.layers)->capture_default_str();
  app.add_option("--heads", settings.model.heads)->capture_default_str();
  app.add_option("--width", settings.model.width)->capture_default_str();
  app.add_option("--vocabulary", settings.model.vocabulary)->capture_default_str();
  app.add_option("--length", settings.model.length)->capture_default_str();
  app.add_option("--micro-batch", settings.micro_batch, "rows at a time")->capture_default_str();
  app.add_option("--batch-tokens", settings.batch_tokens, "tokens a step")->capture_default_str();
  app.add_option("--encodings", settings.encodings)->delimiter(',')->capture_default_str();
  app.add_option("--rounds", settings.rounds)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_flag("--deterministic", settings.deterministic);
  CLI11_PARSE(app, argc, argv);
  try {
    carope::run(settings);
  } catch (const carope::Error& error) {
    fmt::print(stderr, "gpu_step_bench: {}\n", error.what());
    return 1;
  }
  return 0;
}
