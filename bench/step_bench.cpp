// Times whole training steps (forward, backward, AdamW) of one model with several encodings, side
// by side with the matrix product that bounds them: each round runs a 2048³ sgemm and one step of
// every encoding.
#include <dnnl.h>
#include <fmt/format.h>
#include <omp.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "model/gpt.h"
#include "series.h"
#include "train/optimizer.h"

namespace carope {
namespace {

struct BenchSettings {
  GptConfig model{.layers = 6, .heads = 6, .width = 384, .vocabulary = 2048, .length = 256};
  std::vector<std::string> encodings{"rope", "carope"};
  std::int64_t batch = 8;
  int threads = 0;
  int rounds = 15;
  bool json = false;
};

/// Everything one encoding needs to take steps on a fixed batch of random tokens.
class Trainee {
 public:
  Trainee(const BenchSettings& settings, const std::string& encoding)
      : model_(config_for(settings, encoding)),
        optimizer_(model_.parameters(), {}),
        activations_(model_.plan({.batch = settings.batch,
                                  .length = settings.model.length,
                                  .purpose = Purpose::kTraining})) {
    model_.initialise(1);
    // The same tokens as in side_by_side_cpu.py.
    const auto vocabulary = static_cast<std::uint32_t>(settings.model.vocabulary);
    for (std::uint32_t i = 0; i < settings.batch * settings.model.length; ++i) {
      tokens_.push_back(static_cast<std::int32_t>(((i * 2654435761U) >> 8) % vocabulary));
    }
    const Shape shape{settings.batch, settings.model.length};
    batch_ = {.seq = {.batch = settings.batch, .length = settings.model.length},
              .tokens = Tensor::of(tokens_, shape),
              .targets = Tensor::of(tokens_, shape)};
  }

  void step(Context& ctx) {
    model_.loss_and_gradients(ctx, batch_, activations_, Write::kOverwrite);
    optimizer_.step(ctx, 1e-4);
  }

  double flops() const {
    return model_.training_flops_per_token(batch_.seq.length) *
           static_cast<double>(batch_.seq.tokens());
  }
  double tokens() const { return static_cast<double>(batch_.seq.tokens()); }

 private:
  static GptConfig config_for(const BenchSettings& settings, const std::string& encoding) {
    GptConfig config = settings.model;
    config.encoding = encoding;
    return config;
  }

  Gpt model_;
  Optimizer optimizer_;
  Activations activations_;
  std::vector<std::int32_t> tokens_;
  Batch batch_;
};

void run(const BenchSettings& settings) {
  constexpr std::int64_t kSide = 2048;
  constexpr double kGemmFlops = 2.0 * kSide * kSide * kSide;
  Context ctx = Context::cpu(settings.threads);
  const std::vector<float> a(kSide * kSide, 0.5F);
  const std::vector<float> b(kSide * kSide, 0.25F);
  std::vector<float> c(kSide * kSide);
  omp_set_num_threads(ctx.threads());  // the product as the library itself spreads it over threads
  const auto sgemm = [&] {
    dnnl_sgemm('N', 'N', kSide, kSide, kSide, 1.0F, a.data(), kSide, b.data(), kSide, 0.0F,
               c.data(), kSide);
  };

  std::vector<std::unique_ptr<Trainee>> trainees;
  for (const std::string& encoding : settings.encodings) {
    trainees.push_back(std::make_unique<Trainee>(settings, encoding));
  }
  Series gemm_rate;
  std::vector<Series> times(trainees.size());
  for (int round = -1; round < settings.rounds; ++round) {  // the first round only warms up
    const double gemm_seconds = seconds(sgemm);
    if (round >= 0) {
      gemm_rate.values.push_back(kGemmFlops / gemm_seconds);
    }
    for (std::size_t i = 0; i < trainees.size(); ++i) {
      const double elapsed = seconds([&] { trainees[i]->step(ctx); });
      if (round >= 0) {
        times[i].values.push_back(elapsed);
      }
    }
  }

  nlohmann::json report{{"sgemm_gflops", gemm_rate.median() / 1e9}, {"threads", ctx.threads()}};
  if (!settings.json) {
    fmt::print(
        "{} layers, width {}, {} heads, vocabulary {}, {} x {} tokens, {} threads, {} rounds\n",
        settings.model.layers, settings.model.width, settings.model.heads,
        settings.model.vocabulary, settings.batch, settings.model.length, ctx.threads(),
        settings.rounds);
    fmt::print("sgemm 2048^3: {} GFLOP/s; median [quartiles]\n", gemm_rate.spread(1e-9));
    fmt::print("{:<12} {:>26} {:>10} {:>9} {:>24} {:>24}\n", "encoding", "ms a step", "tokens/s",
               "GFLOP/s", "of sgemm", "time, of the first");
  }
  for (std::size_t i = 0; i < trainees.size(); ++i) {
    Series rate;
    for (const double elapsed : times[i].values) {
      rate.values.push_back(trainees[i]->flops() / elapsed);
    }
    const Series of_sgemm = ratio(rate, gemm_rate);
    const Series of_first = ratio(times[i], times[0]);
    const double tokens_per_second = trainees[i]->tokens() / times[i].median();
    report["encodings"][settings.encodings[i]] = {{"seconds", times[i].json()},
                                                  {"tokens_per_second", tokens_per_second},
                                                  {"gflops", rate.median() / 1e9},
                                                  {"of_sgemm", of_sgemm.json()},
                                                  {"time_of_first", of_first.json()}};
    if (!settings.json) {
      fmt::print("{:<12} {:>26} {:>10.0f} {:>9.1f} {:>24} {:>24}\n", settings.encodings[i],
                 times[i].spread(1e3), tokens_per_second, rate.median() / 1e9, of_sgemm.spread(),
                 of_first.spread());
    }
  }
  if (settings.json) {
    fmt::print("{}\n", report.dump());
  }
}

}  // namespace
}  // namespace carope

int main(int argc, char** argv) {
  carope::BenchSettings settings;
  CLI::App app("Times training steps against the sgemm that bounds them.");
  app.add_option("--layers", settings.model.layers)->capture_default_str();
  app.add_option("--heads", settings.model.heads)->capture_default_str();
  app.add_option("--width", settings.model.width)->capture_default_str();
  app.add_option("--vocabulary", settings.model.vocabulary)->capture_default_str();
  app.add_option("--length", settings.model.length)->capture_default_str();
  app.add_option("--batch", settings.batch)->capture_default_str();
  app.add_option("--encodings", settings.encodings)->delimiter(',')->capture_default_str();
  app.add_option("--threads", settings.threads, "0: every core")->capture_default_str();
  app.add_option("--rounds", settings.rounds)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_flag("--json", settings.json, "print one line of JSON");
  CLI11_PARSE(app, argc, argv);
  try {
    carope::run(settings);
  } catch (const carope::Error& error) {
    fmt::print(stderr, "step_bench: {}\n", error.what());
    return 1;
  }
  return 0;
}
