#include "ops/sinusoid.h"

#include "ops/cuda/kernel.cuh"
#include "ops/cuda/sequence.cuh"

namespace carope::cuda {
namespace {

constexpr int kWarps = 4;  // of a block; each has one token
constexpr int kThreads = kWarps * kWarp;

template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    add_waves(T* x, const std::uint32_t* increments, Positions positions, std::int64_t tokens,
              int width, float scale) {
  static_assert(kWidth % 2 == 0);
  const std::int64_t n = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (n >= tokens) {
    return;
  }
  const auto position = static_cast<std::uint32_t>(positions.of(n));
  T* row = x + n * width;
  for (int c = threadIdx.x % kWarp * kWidth; c < width; c += kWarp * kWidth) {
    float values[kWidth];
    unpack(Vec<T, kWidth>::load(row + c), values);
#pragma unroll
    for (int k = 0; k < kWidth; k += 2) {
      // Turns wrap as integers do; as a signed fraction of half a turn they are sincospi's
      // argument.
      const auto turns = static_cast<std::int32_t>(position * increments[(c + k) / 2]);
      float sine, cosine;
      sincospif(static_cast<float>(turns) * 0x1p-31F, &sine, &cosine);
      values[k] += scale * sine;
      values[k + 1] += scale * cosine;
    }
    pack<T>(values).store(row + c);
  }
}

}  // namespace

void add_sinusoid(Context& ctx, const Sequence& seq, const Tensor& increments, float scale,
                  const Tensor& x) {
  visit_float(x.dtype(), [&](auto type) {
    using T = decltype(type);
    const auto width = static_cast<int>(x.cols());
    const bool wide = width % kLanesOf<T> == 0 && aligned16(x.raw());
    const auto kernel = wide ? add_waves<T, kLanesOf<T>> : add_waves<T, 2>;
    kernel<<<ceil_div<std::int64_t>(seq.tokens(), kWarps), kThreads, 0, stream_of(ctx)>>>(
        data_of<T>(x), increments.data<std::uint32_t>(), Positions(seq), seq.tokens(), width,
        scale);
    CUDA_CHECK_LAUNCH();
  });
}

}  // namespace carope::cuda
