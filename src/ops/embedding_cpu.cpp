#include <cstring>

#include "core/parallel.h"
#include "ops/embedding.h"

namespace carope::cpu {
namespace {

constexpr std::int64_t kRows = 64;     // rows a task
constexpr std::int64_t kColumns = 64;  // columns a task, where rows would collide

void add(const float* from, float* to, std::int64_t begin, std::int64_t end) {
#pragma omp simd
  for (std::int64_t c = begin; c < end; ++c) {
    to[c] += from[c];
  }
}

}  // namespace

void embedding(Context& ctx, const Tensor& tokens, const Tensor& table, const Tensor& out) {
  const auto* ids = tokens.data<std::int32_t>();
  const std::int64_t width = table.cols();
  parallel_blocks(ctx, tokens.size(), kRows, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) {
      std::memcpy(out.f32() + n * width, table.f32() + ids[n] * width, sizeof(float) * width);
    }
  });
}

void embedding_backward(Context& ctx, const Tensor& tokens, const Tensor& dout,
                        const Tensor& dtable) {
  const auto* ids = tokens.data<std::int32_t>();
  const std::int64_t width = dtable.cols();
  // Tokens repeat, so tasks own columns rather than rows: no two write the same element, and each
  // element's sum has a fixed order.
  parallel_blocks(ctx, width, kColumns, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = 0; n < tokens.size(); ++n) {
      add(dout.f32() + n * width, dtable.f32() + ids[n] * width, begin, end);
    }
  });
}

void add_positions(Context& ctx, const Sequence& seq, const Tensor& table, const Tensor& x) {
  const std::int64_t width = x.cols();
  parallel_blocks(ctx, seq.tokens(), kRows, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) {
      const std::int64_t position = seq.position_of(n / seq.length, n % seq.length);
      add(table.f32() + position * width, x.f32() + n * width, 0, width);
    }
  });
}

void add_positions_backward(Context& ctx, const Sequence& seq, const Tensor& dx,
                            const Tensor& dtable, Write write) {
  const std::int64_t width = dx.cols();
  if (write == Write::kOverwrite) {
    std::memset(dtable.f32(), 0, dtable.bytes());
  }
  parallel_blocks(ctx, width, kColumns, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = 0; n < seq.tokens(); ++n) {
      const std::int64_t position = seq.position_of(n / seq.length, n % seq.length);
      add(dx.f32() + n * width, dtable.f32() + position * width, begin, end);
    }
  });
}

}  // namespace carope::cpu
