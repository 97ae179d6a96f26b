#pragma once

#include "core/context.h"

namespace carope {

struct Adamw {
  float learning_rate;
  float beta1 = 0.9F;
  float beta2 = 0.95F;
  float epsilon = 1e-8F;
  float decay = 0.0F;           // decoupled: value -= learning_rate * decay * value
  float gradient_scale = 1.0F;  // clipping
  std::int64_t step = 1;        // from 1, for the bias correction of the moments
};

/// One AdamW update of one parameter, in place. All tensors have the parameter's shape.
void adamw(Context& ctx, const Adamw& adamw, const Tensor& value, const Tensor& gradient,
           const Tensor& first_moment, const Tensor& second_moment);

/// Σ x², accumulated in fp64 in an order that does not depend on the number of threads.
double sum_of_squares(Context& ctx, const Tensor& x);

}  // namespace carope
