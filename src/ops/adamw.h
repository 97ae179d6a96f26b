#pragma once

#include <span>

#include "core/context.h"

namespace carope {

struct Adamw {
  float learning_rate;
  float beta1 = 0.9F;
  float beta2 = 0.95F;
  float epsilon = 1e-8F;
  double clip = 0.0;      // largest norm of all gradients together; 0 for no limit
  std::int64_t step = 1;  // from 1, for the bias correction of the moments
};

/// One parameter's tensors, all of the parameter's shape.
struct AdamwSlot {
  Tensor value;
  Tensor gradient;
  Tensor first_moment;
  Tensor second_moment;
  Tensor rounded{};    // bf16: gets a copy of the new value; or empty
  float decay = 0.0F;  // decoupled: value -= learning_rate * decay * value
};

/// norm [1] f64 = the square root of Σ gradient² over all slots, summed in fp64 in an order that
/// does not depend on the number of threads.
void gradient_norm(Context& ctx, std::span<const AdamwSlot> slots, const Tensor& norm);

/// One AdamW update of every slot, in place, with the gradients scaled down to the clip. A norm
/// that is not finite changes nothing.
void adamw(Context& ctx, const Adamw& adamw, std::span<const AdamwSlot> slots, const Tensor& norm);

}  // namespace carope
