#include "ops/heads.h"

namespace carope {

Heads Heads::within(const Tensor& tensor, const Sequence& seq, std::int64_t first,
                    std::int64_t count, std::int64_t dim) {
  const std::int64_t width = tensor.cols();
  check<ShapeError>((first + count) * dim <= width,
                    "rows of {} elements do not hold {} heads of {}", width, first + count, dim);
  const auto begin = static_cast<std::size_t>(first * dim) * size_of(tensor.dtype());
  return {.data = static_cast<std::byte*>(tensor.raw()) + begin,
          .dtype = tensor.dtype(),
          .count = count,
          .dim = dim,
          .row_stride = seq.length * width,
          .token_stride = width,
          .head_stride = dim};
}

QkvHeads split_qkv(const Tensor& qkv, const Sequence& seq, std::int64_t heads,
                   std::int64_t key_heads) {
  check_sequence(seq, qkv, "qkv");
  check<ShapeError>(heads > 0 && key_heads > 0 && qkv.cols() % (heads + 2 * key_heads) == 0,
                    "qkv of width {} does not hold {} query heads and {} key and value heads",
                    qkv.cols(), heads, key_heads);
  const std::int64_t dim = qkv.cols() / (heads + 2 * key_heads);
  return {.q = Heads::within(qkv, seq, 0, heads, dim),
          .k = Heads::within(qkv, seq, heads, key_heads, dim),
          .v = Heads::within(qkv, seq, heads + key_heads, key_heads, dim)};
}

}  // namespace carope
