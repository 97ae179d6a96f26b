#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/random.h"
#include "ops/attention.h"
#include "support/compare.h"
#include "support/cuda_contexts.h"

// What the tests of attention's passes that rotate, or go back through the rotation, have in
// common.
namespace carope::test {

inline constexpr std::int64_t kDim = 64;
inline constexpr std::int64_t kPairs = kDim / 2;

struct AttentionSize {
  std::int64_t batch, length, heads;
};

/// Whether the first GPU rotates and attends over rows of this length.
inline bool is_served(std::int64_t length, DType type = DType::kBF16, std::int64_t dim = kDim,
                      bool documents = false, bool slopes = false) {
  return serves_rotate_and_attend({DeviceKind::kCuda, 0}, {.dtype = type,
                                                           .heads = 1,
                                                           .key_heads = 1,
                                                           .head_dim = dim,
                                                           .length = length,
                                                           .rotary_dim = dim,
                                                           .documents = documents,
                                                           .slopes = slopes});
}

/// What a call is about, and memory for its tensors.
struct AttentionCall {
  AttentionCall(Context& context, const AttentionSize& size)
      : ctx(context),
        seq{.batch = size.batch, .length = size.length},
        attention{.heads = size.heads},
        increments(make({kPairs}, DType::kU32)) {
    const auto increment = rope_increments(kPairs, 10000.0);
    copy_from_host(increments.raw(), increment.data(), increments.bytes(), ctx.device());
  }

  Tensor make(const Shape& shape, DType type) {
    const TensorSpec spec{shape, type};
    return {memory.emplace_back(ctx.device(), spec.bytes()).data(), spec, ctx.device()};
  }
  Tensor make_rows(std::int64_t columns, DType type) {  // a head has so many
    return make({seq.batch, seq.length, attention.heads * columns}, type);
  }
  Tensor make_phases() {
    return make({seq.batch, seq.length, attention.heads, kPairs}, DType::kU16);
  }

  /// Of q and k in qkv, without angles yet.
  Rotation rotation(const Tensor& qkv, RotaryLayout layout) const {
    const QkvHeads parts = split_qkv(qkv, seq, attention.heads, attention.heads);
    return {.q = parts.q, .k = parts.k, .layout = layout, .pairs = kPairs};
  }

  Context& ctx;
  Sequence seq;
  Attention attention;
  std::vector<Memory> memory;
  Tensor increments;  // [P], RoPE's
};

/// Values that bf16 has.
inline std::vector<float> random_values(std::int64_t size, std::uint64_t seed) {
  const Philox random(seed, 1);
  std::vector<float> values;
  for (std::int64_t i = 0; i < size; ++i) {
    values.push_back(to_float(to_bf16(static_cast<float>(random.normal(i)))));
  }
  return values;
}

inline double error_of(const std::vector<float>& found, const auto& expected) {
  return relative_error(std::span(found), std::span(std::as_const(expected)));
}

/// A test for each of some sizes, where a GPU has kernels that rotate.
class RotatingAttentionTest : public testing::TestWithParam<AttentionSize> {
 public:
  static auto sizes() {
    using Size = AttentionSize;
    return testing::Values(Size{1, 128, 1}, Size{3, 128, 2}, Size{2, 256, 2}, Size{3, 384, 1},
                           Size{1, 512, 12}, Size{2, 512, 1}, Size{12, 128, 12}, Size{23, 256, 12});
  }
  static std::string name(const testing::TestParamInfo<AttentionSize>& info) {
    const AttentionSize& size = info.param;
    return fmt::format("B{}_T{}_H{}", size.batch, size.length, size.heads);
  }

 protected:
  void SetUp() override {
    if (!has_gpu()) {
      GTEST_SKIP() << "no GPU is present";
    }
    if (!is_served(GetParam().length)) {
      GTEST_SKIP() << "this GPU has no attention that rotates";
    }
  }
};

}  // namespace carope::test
