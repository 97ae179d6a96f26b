#include "ops/cross_entropy.h"

#include <algorithm>

#include "ops/classifier_cuda.h"
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

Tensor slice(const Tensor& vector, std::int64_t begin, std::int64_t end) {
  return vector.reshape({vector.size(), 1}).slice_rows(begin, end);
}

/// Calls visit(chunk, begin) for each chunk of rows, the first of which is `begin`.
template <class Visit>
void for_each_chunk(const Classifier& args, const Visit& visit) {
  check<ShapeError>(args.hidden && args.weight && args.targets && args.losses && args.logits,
                    "a tensor of the classifier is missing");
  const std::int64_t rows = args.hidden.rows();
  const std::int64_t most = args.logits.rows();
  for (std::int64_t begin = 0; begin < rows; begin += most) {
    const std::int64_t end = std::min(rows, begin + most);
    Classifier chunk = args;
    chunk.hidden = args.hidden.slice_rows(begin, end);
    chunk.targets = slice(args.targets, begin, end);
    chunk.losses = slice(args.losses, begin, end);
    chunk.logits = args.logits.slice_rows(0, end - begin);
    visit(chunk, begin);
  }
}

void compute_logits(Context& ctx, const Classifier& chunk) {
  linear(ctx, chunk.hidden, chunk.weight, {}, chunk.logits, chunk.rounding);
}

/// Whether the device computes a chunk without storing its logits.
bool goes_without_logits(Context& ctx, const Classifier& chunk,
                         const ClassifierGradient& gradient) {
  if (ctx.device().kind != DeviceKind::kCuda) {
    return false;
  }
  check_losses(chunk.logits, chunk.targets, chunk.losses);
  check_shape(chunk.weight, {chunk.logits.cols(), chunk.hidden.cols()}, "the classifier's weight");
  check_shape(gradient.dhidden, chunk.hidden.shape(), "the gradient of the classifier's input");
  return cuda::serves_hopper_classifier(ctx, chunk, gradient);
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
  for_each_chunk(args, [&](const Classifier& chunk, std::int64_t /*begin*/) {
    compute_logits(ctx, chunk);
    cross_entropy(ctx, chunk.logits, chunk.targets, chunk.losses);
  });
}

void classifier_loss_backward(Context& ctx, const Classifier& args,
                              const ClassifierGradient& gradient) {
  for_each_chunk(args, [&](const Classifier& chunk, std::int64_t begin) {
    const Tensor& logits = chunk.logits;
    ClassifierGradient part = gradient;
    part.dhidden = gradient.dhidden.slice_rows(begin, begin + logits.rows());
    part.write = begin == 0 ? gradient.write : Write::kAccumulate;
    if (goes_without_logits(ctx, chunk, part)) {
      cuda::hopper_classifier(ctx, chunk, part);
      return;
    }
    compute_logits(ctx, chunk);
    cross_entropy_in_place(ctx, logits, chunk.targets, chunk.losses, part.scale);
    linear_backward_input(ctx, logits, chunk.weight, part.dhidden, Write::kOverwrite);
    linear_backward_weight(ctx, chunk.hidden, logits, part.dweight, {}, part.write);
  });
}

}  // namespace carope
