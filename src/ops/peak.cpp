#include "ops/peak.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "core/arena.h"
#include "core/random.h"
#include "ops/linear.h"

namespace carope {
namespace {

/// Not zeros: a product of zeros takes less power, and a GPU then runs faster than with any other.
void fill(const Tensor& tensor) {
  const Philox random(1, 0);
  std::vector<float> values(static_cast<std::size_t>(tensor.cols()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(random.normal(i));
  }
  std::vector<Bf16> rounded(values.size());
  std::transform(values.begin(), values.end(), rounded.begin(), to_bf16);
  const bool rounds = tensor.dtype() == DType::kBF16;
  const void* row = rounds ? static_cast<const void*>(rounded.data()) : values.data();
  for (std::int64_t i = 0; i < tensor.rows(); ++i) {
    const Tensor to = tensor.slice_rows(i, i + 1);
    copy_from_host(to.raw(), row, to.bytes(), tensor.device());
  }
}

}  // namespace

double peak_flops(Context& ctx) {
  const bool gpu = ctx.device().kind == DeviceKind::kCuda;
  const std::int64_t side = gpu ? 4096 : 1024;
  const int at_once = gpu ? 10 : 1;  // launches are not to be counted
  constexpr int kTrials = 10;        // the first ones also wake threads and caches
  Tensor x, weight, y;
  const Arena arena = Arena::plan(ctx.device(), [&](Arena& plan) {
    x = plan.take({{side, side}, ctx.compute()});
    weight = plan.take({{side, side}, ctx.compute()});
    y = plan.take({{side, side}, ctx.compute()});
  });
  fill(x);
  fill(weight);
  double shortest = 1e9;
  for (int i = 0; i < kTrials; ++i) {
    const auto start = std::chrono::steady_clock::now();
    for (int j = 0; j < at_once; ++j) {
      linear(ctx, x, weight, {}, y);
    }
    wait(ctx);
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    shortest = std::min(shortest, taken.count());
  }
  const auto cube = static_cast<double>(side * side * side);
  return 2.0 * at_once * cube / shortest;
}

}  // namespace carope
