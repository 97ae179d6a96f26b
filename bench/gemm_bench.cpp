// The matrix products of a training step in oneDNN, as its own threads do them and as this library
// cuts them into tiles, and in OpenBLAS: what the choice of library rests on.
#include <cblas.h>
#include <dnnl.h>
#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "core/random.h"
#include "ops/matmul/matmul_cpu.h"

namespace carope {
namespace {

struct Layer {
  const char* name;
  std::int64_t tokens, in, out;
};

// The layers of a model 128 wide and one 384 wide with 2048 tokens and a vocabulary of 2048, and of
// gpt-tiny.
constexpr Layer kLayers[] = {
    {"2048^3", 2048, 2048, 2048},          {"128 qkv", 2048, 128, 384},
    {"128 attention out", 2048, 128, 128}, {"128 mlp in", 2048, 128, 512},
    {"128 mlp out", 2048, 512, 128},       {"128 head", 2048, 128, 2048},
    {"384 qkv", 2048, 384, 1152},          {"384 attention out", 2048, 384, 384},
    {"384 mlp in", 2048, 384, 1536},       {"384 mlp out", 2048, 1536, 384},
    {"384 head", 2048, 384, 2048},         {"gpt-tiny qkv", 4096, 512, 1536},
    {"gpt-tiny mlp in", 4096, 512, 2048},  {"gpt-tiny mlp out", 4096, 2048, 512},
    {"gpt-tiny head", 1024, 512, 50304}};

using Product = std::function<void(const cpu::MatmulShape&, cpu::Matrix, cpu::Matrix, cpu::Matrix)>;

void onednn(const cpu::MatmulShape& shape, cpu::Matrix a, cpu::Matrix b, cpu::Matrix c) {
  cpu::sgemm(shape, a, b, c, Write::kOverwrite);
}

void openblas(const cpu::MatmulShape& shape, cpu::Matrix a, cpu::Matrix b, cpu::Matrix c) {
  const auto transpose = [](const cpu::Matrix& matrix) {
    return matrix.transposed ? CblasTrans : CblasNoTrans;
  };
  cblas_sgemm(CblasRowMajor, transpose(a), transpose(b), static_cast<int>(shape.m),
              static_cast<int>(shape.n), static_cast<int>(shape.k), 1.0F, a.data,
              static_cast<int>(a.stride), b.data, static_cast<int>(b.stride), 0.0F, c.data,
              static_cast<int>(c.stride));
}

/// Median GFLOP/s of a product over enough repetitions to fill half a second.
double rate(const std::function<void()>& product, double flops) {
  const auto once = [&] {
    const auto begin = std::chrono::steady_clock::now();
    product();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  once();
  std::vector<double> times;
  for (double total = 0.0; total < 0.5 || times.size() < 5;) {
    times.push_back(once());
    total += times.back();
  }
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2),
                   times.end());
  return flops / times[times.size() / 2] / 1e9;
}

std::vector<float> random_values(std::int64_t count) {
  const Philox random(1, static_cast<std::uint64_t>(count));
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(random.uniform(i) - 0.5);
  }
  return values;
}

void run() {
  const Context ctx = Context::cpu();
  omp_set_num_threads(ctx.threads());
  const std::vector<std::pair<std::string, Product>> products{
      {"oneDNN", onednn},
      {"oneDNN tiles", [&](const cpu::MatmulShape& shape, cpu::Matrix a, cpu::Matrix b,
                           cpu::Matrix c) { cpu::matmul(ctx, shape, a, b, c, Write::kOverwrite); }},
      {"OpenBLAS", openblas}};
  fmt::print("{} threads, GFLOP/s: forward / input gradient / weight gradient\n{:<20}",
             ctx.threads(), "layer");
  for (const auto& [name, product] : products) {
    fmt::print("{:>24}", name);
  }
  fmt::print("\n");
  for (const Layer& layer : kLayers) {
    auto x = random_values(layer.tokens * layer.in);
    auto w = random_values(layer.out * layer.in);
    auto y = random_values(layer.tokens * layer.out);
    const cpu::Matrix mx{x.data(), layer.in};
    const cpu::Matrix mw{w.data(), layer.in};
    const cpu::Matrix my{y.data(), layer.out};
    const cpu::Matrix wt{w.data(), layer.in, true};
    const cpu::Matrix yt{y.data(), layer.out, true};
    const double flops = 2.0 * static_cast<double>(layer.tokens * layer.in * layer.out);
    fmt::print("{:<20}", layer.name);
    for (const auto& [name, product] : products) {
      const double forward = rate(
          [&] {
            product({layer.tokens, layer.out, layer.in}, mx, wt, my);
          },
          flops);
      const double input = rate(
          [&] {
            product({layer.tokens, layer.in, layer.out}, my, mw, mx);
          },
          flops);
      const double weight = rate(
          [&] {
            product({layer.out, layer.in, layer.tokens}, yt, mx, mw);
          },
          flops);
      fmt::print("{:>24}", fmt::format("{:.0f} / {:.0f} / {:.0f}", forward, input, weight));
    }
    fmt::print("\n");
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace carope

int main() { carope::run(); }
