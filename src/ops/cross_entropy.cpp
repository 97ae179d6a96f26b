#include "ops/cross_entropy.h"

#include <algorithm>

#include "ops/dispatch.h"
#include "ops/linear.h"

namespace carope {

namespace cpu {
decltype(carope::cross_entropy) cross_entropy;
decltype(carope::cross_entropy_in_place) cross_entropy_in_place;
}  // namespace cpu

namespace cuda {
decltype(carope::cross_entropy) cross_entropy;
decltype(carope::cross_entropy_in_place) cross_entropy_in_place;
}  // namespace cuda

namespace {

void check_losses(const Tensor& logits, const Tensor& targets, const Tensor& losses) {
  check<ShapeError>(static_cast<bool>(logits), "the logits are missing");
  const std::int64_t rows = logits.rows();
  check<ShapeError>(targets && targets.size() == rows && losses && losses.size() == rows,
                    "{} rows of logits need as many targets and losses", rows);
  if (targets.device().kind != DeviceKind::kCpu) {
    return;  // who brought the targets there has looked at them
  }
  const auto* ids = targets.data<std::int32_t>();
  for (std::int64_t n = 0; n < rows; ++n) {
    check<ShapeError>(ids[n] < logits.cols(),
                      "target {} at index {} is outside the vocabulary of {}", ids[n], n,
                      logits.cols());
  }
}

/// Calls visit(begin, end, logits) for each chunk of rows [begin, end), with the logits computed.
template <class Visit>
void for_each_chunk(Context& ctx, const Classifier& args, const Visit& visit) {
  check<ShapeError>(args.hidden && args.weight && args.targets && args.losses && args.logits,
                    "a tensor of the classifier is missing");
  const std::int64_t rows = args.hidden.rows();
  const std::int64_t chunk = args.logits.rows();
  for (std::int64_t begin = 0; begin < rows; begin += chunk) {
    const std::int64_t end = std::min(rows, begin + chunk);
    const Tensor logits = args.logits.slice_rows(0, end - begin);
    linear(ctx, args.hidden.slice_rows(begin, end), args.weight, {}, logits, args.rounding);
    visit(begin, end, logits);
  }
}

Tensor slice(const Tensor& vector, std::int64_t begin, std::int64_t end) {
  return vector.reshape({vector.size(), 1}).slice_rows(begin, end);
}

}  // namespace

void cross_entropy(Context& ctx, const Tensor& logits, const Tensor& targets,
                   const Tensor& losses) {
  check_losses(logits, targets, losses);
  dispatch(ctx, cpu::cross_entropy, cuda::cross_entropy, logits, targets, losses);
}

void cross_entropy_in_place(Context& ctx, const Tensor& logits, const Tensor& targets,
                            const Tensor& losses, float scale) {
  check_losses(logits, targets, losses);
  dispatch(ctx, cpu::cross_entropy_in_place, cuda::cross_entropy_in_place, logits, targets, losses,
           scale);
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
