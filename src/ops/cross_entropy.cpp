#include "ops/cross_entropy.h"

#include <algorithm>

#include "ops/linear.h"

namespace carope {

namespace cpu {
decltype(carope::cross_entropy) cross_entropy;
decltype(carope::cross_entropy_in_place) cross_entropy_in_place;
}  // namespace cpu

namespace {

void check_losses(std::int64_t rows, std::int64_t classes, const Tensor& targets,
                  const Tensor& losses) {
  check<ShapeError>(targets && targets.size() == rows && losses && losses.size() == rows,
                    "{} rows of logits need as many targets and losses", rows);
  const auto* ids = targets.data<std::int32_t>();
  for (std::int64_t n = 0; n < rows; ++n) {
    check<ShapeError>(ids[n] < classes, "target {} at index {} is outside the vocabulary of {}",
                      ids[n], n, classes);
  }
}

/// Calls visit(rows [begin, end), logits for them) for each chunk.
template <class Visit>
void for_each_chunk(Context& ctx, const Classifier& args, const Visit& visit) {
  constexpr std::int64_t kChunkBytes = std::int64_t{8} << 20;
  constexpr std::int64_t kMinRows = 256;
  check<ShapeError>(args.hidden && args.weight, "a tensor of the classifier is missing");
  const std::int64_t rows = args.hidden.rows();
  const std::int64_t classes = args.weight.dim(0);
  check_losses(rows, classes, args.targets, args.losses);
  const std::int64_t suited = std::max(kMinRows, kChunkBytes / (classes * 4));
  const std::int64_t chunk = std::min(rows, args.chunk_rows > 0 ? args.chunk_rows : suited);
  const Tensor logits = ctx.scratch({{chunk, classes}});
  for (std::int64_t begin = 0; begin < rows; begin += chunk) {
    const std::int64_t end = std::min(rows, begin + chunk);
    const Tensor part = logits.slice_rows(0, end - begin);
    linear(ctx, args.hidden.slice_rows(begin, end), args.weight, {}, part);
    visit(begin, end, part);
  }
}

Tensor slice(const Tensor& vector, std::int64_t begin, std::int64_t end) {
  return vector.reshape({vector.size(), 1}).slice_rows(begin, end);
}

}  // namespace

void cross_entropy(Context& ctx, const Tensor& logits, const Tensor& targets,
                   const Tensor& losses) {
  check<ShapeError>(static_cast<bool>(logits), "the logits are missing");
  check_losses(logits.rows(), logits.cols(), targets, losses);
  require_cpu(ctx, "cross_entropy");
  cpu::cross_entropy(ctx, logits, targets, losses);
}

void cross_entropy_in_place(Context& ctx, const Tensor& logits, const Tensor& targets,
                            const Tensor& losses, float scale) {
  check<ShapeError>(static_cast<bool>(logits), "the logits are missing");
  check_losses(logits.rows(), logits.cols(), targets, losses);
  require_cpu(ctx, "cross_entropy_in_place");
  cpu::cross_entropy_in_place(ctx, logits, targets, losses, scale);
}

void classifier_loss(Context& ctx, const Classifier& args) {
  for_each_chunk(ctx, args, [&](std::int64_t begin, std::int64_t end, const Tensor& logits) {
    cross_entropy(ctx, logits, slice(args.targets, begin, end), slice(args.losses, begin, end));
  });
}

void classifier_loss_backward(Context& ctx, const Classifier& args,
                              const ClassifierGradient& gradient) {
  for_each_chunk(ctx, args, [&](std::int64_t begin, std::int64_t end, const Tensor& logits) {
    cross_entropy_in_place(ctx, logits, slice(args.targets, begin, end),
                           slice(args.losses, begin, end), gradient.scale);
    linear_backward_input(ctx, logits, args.weight, gradient.dhidden.slice_rows(begin, end),
                          Write::kOverwrite);
    linear_backward_weight(ctx, args.hidden.slice_rows(begin, end), logits, gradient.dweight, {},
                           begin == 0 ? gradient.write : Write::kAccumulate);
  });
}

}  // namespace carope
